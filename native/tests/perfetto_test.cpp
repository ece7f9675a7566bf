// The Perfetto writer: its encoding, its texts, and that any nested spans come out as pairs in order of time.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "check.h"
#include "core/perfetto/protobuf_buffer.h"
#include "core/perfetto/texts.h"
#include "core/perfetto/writer.h"
#include "core/spans/nesting.h"

namespace kinetoscope {
namespace {

// Reads the wire format: calls `take(field, number, bytes)` for every field.
template <typename Take>
bool read_fields(std::string_view encoded, Take take) {
  std::size_t at = 0;
  const auto varint = [&](uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 70 && at < encoded.size(); shift += 7) {
      const auto byte = static_cast<unsigned char>(encoded[at++]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  };
  while (at < encoded.size()) {
    uint64_t tag = 0, number = 0;
    if (!varint(tag)) return false;
    std::string_view bytes;
    if ((tag & 7) == 0) {
      if (!varint(number)) return false;
    } else if ((tag & 7) == 1) {
      if (encoded.size() - at < 8) return false;
      std::memcpy(&number, encoded.data() + at, 8);
      at += 8;
    } else {
      if ((tag & 7) != 2 || !varint(number) || encoded.size() - at < number) return false;
      bytes = encoded.substr(at, number);
      at += number;
    }
    take(static_cast<uint32_t>(tag >> 3), number, bytes);
  }
  return true;
}

void numbers_of_every_size_are_read_back() {
  ProtobufBuffer buffer;
  std::vector<uint64_t> written;
  for (int bits = 0; bits < 64; ++bits) {
    for (const uint64_t value : {(uint64_t{1} << bits) - 1, uint64_t{1} << bits}) {
      written.push_back(value);
      buffer.number(1 + static_cast<uint32_t>(written.size()), value);
    }
  }
  buffer.number(300, static_cast<uint64_t>(int64_t{-1}));
  buffer.real(301, 0.5);
  buffer.bytes(302, std::string(100'000, 'x'));
  std::size_t seen = 0;
  const bool whole = read_fields(buffer.view(), [&](uint32_t field, uint64_t number, std::string_view bytes) {
    if (seen < written.size()) {
      CHECK(field == seen + 2);
      CHECK(number == written[seen]);
    } else if (field == 300) {
      CHECK(number == std::numeric_limits<uint64_t>::max());
    } else if (field == 301) {
      CHECK(std::bit_cast<double>(number) == 0.5);
    } else {
      CHECK(bytes.size() == 100'000);
    }
    ++seen;
  });
  CHECK(whole);
  CHECK(seen == written.size() + 3);
}

void texts_become_strict() {
  CHECK(strict_utf8("plain") == "plain");
  CHECK(strict_utf8("\xc3\xa9") == "\xc3\xa9");
  CHECK(strict_utf8("a\xff\x62") == "a\xef\xbf\xbd\x62");
  CHECK(strict_utf8("\xed\xa0\xbd") == "\xef\xbf\xbd");
  CHECK(strict_utf8("\xed\xa0\xbd\xed\xb8\x80!") == "\xf0\x9f\x98\x80!");
  CHECK(strict_utf8(std::string_view("\0x", 2)) == std::string_view("\0x", 2));
  CHECK(strict_utf8("").empty());
}

void members_of_objects_keep_their_types() {
  using Type = ObjectMembers::Type;
  std::vector<std::string> names{"arguments", "known"};
  const std::vector<std::string> objects{
      R"({"a": -3, "known": 18446744073709551615, "b": 0.5, "c": true, "d": null})",
      R"( { } )",
      "[1]",
      "",
      R"({"a": "x\u00e9\"", "e": {"f": [1, "}"]}, "g": 1e999})",
  };
  const ObjectMembers members(objects, 0, names);
  CHECK(members.size() == objects.size());
  CHECK((names == std::vector<std::string>{"arguments", "known", "a", "b", "c", "d", "e", "g"}));
  const auto first = members.of(0);
  CHECK(first.size() == 5);
  CHECK(first[0].type == Type::Integer && static_cast<int64_t>(first[0].bits) == -3);
  CHECK(first[1].name == 1 && first[1].type == Type::Unsigned && first[1].bits + 1 == 0);
  CHECK(first[2].type == Type::Real && first[3].type == Type::Boolean && first[4].type == Type::Text);
  CHECK(members.of(1).empty());
  CHECK(members.of(2).size() == 1 && members.of(2)[0].name == 0);
  CHECK(members.of(3).empty());
  const auto last = members.of(4);
  const auto text = [&](std::size_t at) { return members.texts()[last[at].bits]; };
  CHECK(last.size() == 3);
  CHECK(text(0) == "x\xc3\xa9\"");
  CHECK(text(1) == R"({"f": [1, "}"]})");
  CHECK(text(2) == "1e999");
}

struct Columns {
  std::vector<int32_t> thread, name, category;
  std::vector<int64_t> start_ns, duration_ns;
  Nesting nesting;
  std::vector<int32_t> first_track;
  std::vector<PerfettoTrack> tracks;

  PerfettoColumns spans() const {
    return {.spans = {.start_ns = start_ns,
                      .duration_ns = duration_ns,
                      .name = name,
                      .category = category,
                      .thread = thread,
                      .lane = nesting.lane,
                      .instant = {},
                      .location = {}},
            .span_facts = {},
            .moments = {},
            .moment_facts = {},
            .counters = {},
            .arrows = {}};
  }
  PerfettoTables tables() const {
    return {.strings = {"", "op"},
            .categories = {"cpu_op"},
            .stacks = {},
            .tracks = tracks,
            .thread_first_track = first_track,
            .metadata = {}};
  }
};

Columns random_columns(std::mt19937& random, std::size_t count) {
  std::vector<std::tuple<int32_t, int64_t, int64_t>> rows;
  for (std::size_t row = 0; row < count; ++row)
    rows.emplace_back(random() % 3, static_cast<int64_t>(random() % 60) - 10,
                      -static_cast<int64_t>(random() % 40));
  std::sort(rows.begin(), rows.end());
  Columns made;
  for (const auto& [thread, start_ns, negative_ns] : rows) {
    made.thread.push_back(thread);
    made.start_ns.push_back(start_ns);
    made.duration_ns.push_back(-negative_ns);
  }
  made.name.assign(count, 1);
  made.category.assign(count, 0);
  made.nesting = nest(made.thread, made.start_ns, made.duration_ns);
  std::vector<int32_t> lanes(3, 1);
  for (std::size_t row = 0; row < count; ++row) {
    int32_t& most = lanes[static_cast<std::size_t>(made.thread[row])];
    most = std::max(most, made.nesting.lane[row] + 1);
  }
  for (const int32_t some : lanes) {
    made.first_track.push_back(static_cast<int32_t>(made.tracks.size()));
    for (int32_t lane = 0; lane < some; ++lane)
      made.tracks.push_back({.kind = PerfettoTrack::Kind::Group, .name = "t", .unit = "", .note = ""});
  }
  return made;
}

std::string written(const Columns& columns, std::size_t block_bytes) {
  PerfettoWriter writer(columns.spans(), columns.tables(), 0, 1000, block_bytes);
  std::string whole;
  for (std::string_view block = writer.next_block(); !block.empty(); block = writer.next_block())
    whole += block;
  CHECK(writer.next_block().empty());
  return whole;
}

// Every (track, start, end) in a file, taking ends as those of what began last on their track.
std::vector<std::tuple<uint64_t, uint64_t, uint64_t>> slices_of(std::string_view file) {
  std::map<uint64_t, uint64_t> clock, default_track;
  std::map<uint64_t, std::vector<uint64_t>> open;
  std::vector<std::tuple<uint64_t, uint64_t, uint64_t>> found;
  const bool whole = read_fields(file, [&](uint32_t, uint64_t, std::string_view packet) {
    uint64_t sequence = 0, delta = 0, track = 0, type = 0;
    const auto defaults = [&](uint32_t field, uint64_t, std::string_view bytes) {
      if (field != 11) return;
      CHECK(read_fields(bytes, [&](uint32_t, uint64_t number, std::string_view) { track = number; }));
    };
    bool starts = false;
    CHECK(read_fields(packet, [&](uint32_t field, uint64_t number, std::string_view bytes) {
      if (field == 10) sequence = number;
      if (field == 8) delta = number;
      if (field == 59) starts = read_fields(bytes, defaults);
      if (field == 11) {
        CHECK(read_fields(bytes, [&](uint32_t inner, uint64_t value, std::string_view) {
          if (inner == 9) type = value;
          if (inner == 11) track = value;
        }));
      }
    }));
    if (starts) default_track[sequence] = track;
    if (type == 0) return;
    clock[sequence] += delta;
    if (track == 0) track = default_track[sequence];
    if (type == 1) {
      open[track].push_back(clock[sequence]);
    } else {
      CHECK(!open[track].empty());
      if (open[track].empty()) return;
      found.emplace_back(track, open[track].back(), clock[sequence]);
      open[track].pop_back();
    }
  });
  CHECK(whole);
  for (const auto& [track, ends] : open) CHECK(ends.empty());
  std::sort(found.begin(), found.end());
  return found;
}

void any_spans_come_out_as_pairs() {
  std::mt19937 random(4);
  for (int trial = 0; trial < 300; ++trial) {
    const Columns columns = random_columns(random, random() % 60);
    const std::string file = written(columns, 1 << 20);
    CHECK(file == written(columns, 1));
    CHECK(file == written(columns, 100));
    int64_t origin_ns = 0;
    for (const int64_t start_ns : columns.start_ns) origin_ns = std::min(origin_ns, start_ns);
    std::vector<std::tuple<uint64_t, uint64_t, uint64_t>> expected;
    for (std::size_t row = 0; row < columns.thread.size(); ++row) {
      const auto thread = static_cast<std::size_t>(columns.thread[row]);
      const auto track = static_cast<std::size_t>(columns.first_track[thread] + columns.nesting.lane[row]);
      const auto begins = static_cast<uint64_t>(columns.start_ns[row] - origin_ns);
      expected.emplace_back(track_uuid(1000, track), begins,
                            begins + static_cast<uint64_t>(columns.duration_ns[row]));
    }
    std::sort(expected.begin(), expected.end());
    CHECK(slices_of(file) == expected);
  }
}

void wrong_columns_are_refused() {
  std::mt19937 random(1);
  Columns columns = random_columns(random, 20);
  const auto make = [&] { return written(columns, 1); };
  CHECK(!make().empty());
  std::swap(columns.start_ns.front(), columns.start_ns.back());
  CHECK_THROWS(make(), BadColumns);
  columns = random_columns(random, 20);
  columns.category.back() = 1;
  CHECK_THROWS(make(), BadColumns);
  columns = random_columns(random, 20);
  columns.thread.back() = 7;
  CHECK_THROWS(make(), BadColumns);
  columns = random_columns(random, 20);
  columns.name.pop_back();
  CHECK_THROWS(make(), BadColumns);
  columns = random_columns(random, 20);
  columns.tracks[0].parent = 0;
  CHECK_THROWS(make(), BadColumns);
}

}  // namespace
}  // namespace kinetoscope

int main() {
  kinetoscope::numbers_of_every_size_are_read_back();
  kinetoscope::texts_become_strict();
  kinetoscope::members_of_objects_keep_their_types();
  kinetoscope::any_spans_come_out_as_pairs();
  kinetoscope::wrong_columns_are_refused();
  return kinetoscope::testing::checks_failed();
}
