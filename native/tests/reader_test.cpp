// parse_recording on whole, damaged and growing recordings.
#include "core/recording/reader.h"

#include <atomic>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "core/recording/chunks.h"
#include "core/spans/nesting.h"
#include "recording_image.h"

namespace kinetoscope {
namespace {

using testing::RecordingImage;

RecordingImage small_image() {
  RecordingImage image(512, 4);
  image.begin_chunk(0, ChunkKind::Dictionary, 0, 1);
  image.add_entry(0, Entry::String, {1}, "aten::mm");
  image.add_entry(0, Entry::Name, {1, 1, 0});
  image.add_entry(0, Entry::Frame, {1, 1, 1, 7});
  image.add_entry(0, Entry::Stack, {1, 0, 1});
  image.add_entry(0, Entry::Stack, {2, 1, 1});
  image.add_entry(0, Entry::Module, {1, 1, 0, 0, 64, 0});
  image.add_entry(0, Entry::ModuleName, {1, 1, 1});  // its own parent
  image.add_entry(0, Entry::Parameter, {1, 1, 0, 0, 64, 0});
  image.add_entry(0, Entry::Shapes, {1, 2, 2, 2}, "[][][]");
  image.add_entry(0, Entry::Thread, {5, 55, 1, 0}, "main");
  image.add_entry(0, Entry::Info, {1}, "k1");
  image.begin_chunk(1, ChunkKind::Spans, 5, 3);
  image.begin_chunk(2, ChunkKind::Spans, 5, 2);
  for (uint64_t at = 0; at < 8; ++at) {
    image.add_span(2, 10 * at, at == 3 ? 0 : 10 * at + 5).name = 1;
    image.add_span(1, 100 + 10 * at, 100 + 10 * at + 5).stack = 2;
  }
  image.begin_chunk(3, ChunkKind::Allocations, 5, 4);
  for (uint64_t at = 0; at < 4; ++at) {
    AllocationRecord& record =
        reinterpret_cast<AllocationRecord*>(image.payload(3))[image.chunk(3).committed++];
    record = {RecordingImage::kStart + at, 64, at % 2 == 0 ? 128 : 0, 0, -1, 0, 1};
  }
  return image;
}

void check_columns(const Recording& recording) {
  const SpanColumns& spans = recording.spans;
  const RecordingDictionary& tables = recording.dictionary;
  for (std::size_t row = 0; row < spans.size(); ++row) {
    CHECK(spans.duration_ns[row] >= 0);
    CHECK(static_cast<std::size_t>(spans.name[row]) < tables.strings.size());
    CHECK(spans.stack[row] < static_cast<int32_t>(tables.stack_parent.size()));
    CHECK(spans.module[row] < static_cast<int32_t>(tables.module_class.size()));
    CHECK(static_cast<std::size_t>(spans.thread[row]) < recording.thread_index.size());
  }
  static_cast<void>(nest(spans.thread, spans.start_ns, spans.duration_ns));
}

void a_whole_recording_is_read() {
  RecordingImage image = small_image();
  const Recording recording = parse_recording(image.bytes());
  check_columns(recording);
  CHECK(recording.spans.size() == 16);
  CHECK(recording.spans.start_ns[0] == 0 && recording.spans.start_ns[15] == 170);
  CHECK(recording.dictionary.strings[static_cast<std::size_t>(recording.spans.name[0])] == "aten::mm");
  CHECK(recording.spans.stack[15] == 1);
  CHECK(recording.losses.unfinished_spans == 1);
  CHECK(recording.losses.damaged_entries == 1);  // the module's circle
  CHECK(recording.allocations.time_ns.size() == 4);
  CHECK(recording.thread_index.size() == 1 && recording.thread_index[0] == 5);
  CHECK(recording.stopped && recording.stop_ns == 1'000'000);
}

void damage_does_no_harm() {
  const RecordingImage whole = small_image();
  std::mt19937 random(7);
  int read = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    RecordingImage image = whole;
    std::vector<std::byte>& bytes = image.storage();
    const std::size_t first = trial % 4 == 0 ? 0 : kHeaderBytes;
    for (std::size_t change = 1 + random() % 8; change > 0; --change) {
      bytes[first + random() % (bytes.size() - first)] = static_cast<std::byte>(random());
    }
    if (trial % 3 == 0) bytes.resize(random() % bytes.size());
    // A copy of its own, so that the sanitizer sees every read beyond the end.
    const std::vector<std::byte> exact(bytes.begin(), bytes.end());
    try {
      check_columns(parse_recording(exact));
      static_cast<void>(progress_of(exact));
      ++read;
    } catch (const RefusedRecording&) {
      continue;
    }
  }
  CHECK(read > 1000);
}

void numbers_of_ranges_are_taken_whatever_they_are() {
  RecordingImage image(512, 2);
  image.begin_chunk(0, ChunkKind::Dictionary, 0, 1);
  image.add_entry(0, Entry::String, {1}, kStepMark);
  image.add_entry(0, Entry::String, {2}, "Optimizer.step#SGD.step");
  image.add_entry(0, Entry::Name, {1, 1, 0});
  image.add_entry(0, Entry::Name, {2, 2, 0});
  image.begin_chunk(1, ChunkKind::Spans, 5, 2);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = std::numeric_limits<int64_t>::min();
  uint64_t start = 0;
  for (const int64_t number : {kMost, int64_t{0}, int64_t{-1}, kLeast}) {
    for (const uint32_t name : {1u, 2u}) {
      SpanRecord& record = image.add_span(1, start, start + 1);
      record.name = name;
      record.scope = kUserScope;
      record.sequence = number;
      start += 10;
    }
  }
  const Recording recording = parse_recording(image.bytes());
  check_columns(recording);
  const auto name = [&](std::size_t row) {
    return recording.dictionary.strings[static_cast<std::size_t>(recording.spans.name[row])];
  };
  CHECK(name(0) == "ProfilerStep#9223372036854775807" && name(2) == "ProfilerStep#0");
  CHECK(name(4) == kStepMark && name(6) == kStepMark);
  CHECK(recording.optimizer_steps.size() == 2);
  CHECK(recording.optimizer_steps[0].span == 1 && recording.optimizer_steps[0].number == kMost);
  CHECK(recording.optimizer_steps[1].span == 3 && recording.optimizer_steps[1].number == 0);
}

// What a compact record of a span and its site say is what the span says.
void a_compact_span_is_the_span() {
  constexpr uint64_t kDay = uint64_t{3'000'000'000} * 86'400;
  for (const uint64_t start : {uint64_t{1}, uint64_t{123'456'789}, 3000 * kDay}) {
    for (const uint64_t ticks : {uint64_t{0}, uint64_t{1}, uint64_t{4000}, kDay / 24, kDay / 2}) {
      for (const int64_t sequence : {int64_t{-1}, int64_t{0}, int64_t{UINT32_MAX}, int64_t{1} << 32,
                                     SpanSite::kMostSequence, -SpanSite::kMostSequence}) {
        const SpanRecord span{.start_tick = start,
                              .end_tick = start + ticks,
                              .name = 1,
                              .stack = kUnknownId,
                              .module = 3,
                              .shapes = 4,
                              .sequence = sequence,
                              .forward_thread = UINT16_MAX,
                              .scope = kScopeModule,
                              .flags = kSpanAsync | kSpanCut | kSpanBegunBefore,
                              .parameter = UINT32_MAX};
        const CompactSpan record = compact(span, 9);
        CHECK(record.site == 9 && (record.flags() & kSpanIsCall) != 0);
        const SpanRecord again = span_at(record, site_of(span));
        CHECK(std::memcmp(&again, &span, sizeof(span)) == 0);
      }
    }
    // A span of days ends at most a few microseconds late.
    const SpanRecord days{.start_tick = start, .end_tick = start + 100 * kDay + 1};
    const uint64_t end = compact(days, 1).end_tick();
    CHECK(end >= days.end_tick && end < days.end_tick + CompactSpan::kCoarseTicks);
    // One that has not ended, and one that ended before it began.
    CHECK(compact({.start_tick = start}, 1).end_tick() == 0);
    CHECK(compact({.start_tick = start + 10, .end_tick = start}, 1).end_tick() == start + 9);
  }
}

void spans_are_read_by_their_sites() {
  RecordingImage image(4096, 2);
  image.header().version = kVersion;
  image.begin_chunk(0, ChunkKind::Dictionary, 0, 1);
  image.add_entry(0, Entry::String, {1}, "aten::mm");
  image.add_entry(0, Entry::Name, {1, 1, 0});
  image.add_site(0, 2, {.name = 1, .scope_and_sequence = SpanSite::rest_of(0, 5)});
  image.begin_chunk(1, ChunkKind::Spans, 1, 2);
  const uint64_t start = RecordingImage::kStart;
  image.add_compact_span(1, {.start_tick = start, .end_tick = start + 5, .sequence = 5}, 2);
  // Of one that is not in the dictionary, and one that found no room there, the times are known.
  image.add_compact_span(1, {.start_tick = start + 10, .end_tick = start + 15, .sequence = 6}, 1);
  image.add_compact_span(1, {.start_tick = start + 20, .sequence = 7}, kUnknownId);
  image.header().limited_dictionary = 1;
  const Recording recording = parse_recording(image.bytes());
  check_columns(recording);
  const SpanColumns& spans = recording.spans;
  CHECK(spans.size() == 3 && recording.losses.unfinished_spans == 1);
  CHECK(recording.losses.damaged_entries == 0);
  const auto name = [&](std::size_t row) {
    return recording.dictionary.strings[static_cast<std::size_t>(spans.name[row])];
  };
  CHECK(name(0) == "aten::mm" && name(1).empty() && name(2) == "(name not recorded)");
  CHECK(spans.sequence[0] == 5 && spans.sequence[1] == -1 && spans.sequence[2] == -1);
  CHECK(spans.stack[2] == -1 && spans.shapes[2] == -1);
  CHECK(spans.start_ns[1] > spans.start_ns[0] && spans.duration_ns[0] == spans.duration_ns[1]);
}

void clips_to_the_caller() {
  const std::vector<int64_t> start_ns{0, 10, 20};
  std::vector<int64_t> duration_ns{0, 30, 0};
  const std::vector<uint8_t> flags{kStateUnfinished, 0, kStateUnfinished};
  CHECK(clip_unfinished(start_ns, duration_ns, flags, 100) == 2);
  CHECK(duration_ns[0] == 100 && duration_ns[2] == 20);
}

void a_growing_recording_is_read_meanwhile() {
  constexpr std::size_t kChunks = 60, kRecords = (4096 - sizeof(ChunkHeader)) / sizeof(SpanRecord);
  RecordingImage image(4096, kChunks);
  image.header().state = static_cast<uint32_t>(FileState::Recording);
  image.header().chunks = 0;
  std::atomic<bool> done = false;
  std::thread recorder([&] {
    for (std::size_t at = 0; at < kChunks; ++at) {
      image.begin_chunk(at, ChunkKind::Spans, 1, at + 1);
      __atomic_store_n(&image.header().chunks, at + 1, __ATOMIC_RELEASE);
      __atomic_store_n(&image.header().orders, at + 1, __ATOMIC_RELEASE);
      auto* records = reinterpret_cast<SpanRecord*>(image.payload(at));
      for (std::size_t record = 0; record < kRecords; ++record) {
        records[record] = {};
        records[record].start_tick = RecordingImage::kStart + at * kRecords + record;
        __atomic_store_n(&image.chunk(at).committed, record + 1, __ATOMIC_RELEASE);
        __atomic_store_n(&records[record].end_tick, records[record].start_tick + 1, __ATOMIC_RELAXED);
      }
    }
    done = true;
  });
  std::size_t seen = 0;
  bool last = false;
  while (!last) {
    last = done;
    const Recording recording = parse_recording(image.bytes());
    check_columns(recording);
    CHECK(recording.spans.size() >= seen);
    CHECK(recording.losses.damaged_records == 0 && recording.losses.damaged_chunks == 0);
    seen = recording.spans.size();
  }
  recorder.join();
  CHECK(seen == kChunks * kRecords);
}

// Of version `version`, with chunk `at` gone: its header is zero, or its unit is free.
uint64_t damaged_without(std::size_t at, uint32_t version, bool free, uint64_t recycled = 0) {
  RecordingImage image = small_image();
  image.header().version = version;
  image.header().orders = version < 4 ? 0 : 4;
  image.header().recycled_chunks = recycled;
  image.chunk(at) = {};
  if (free) image.begin_chunk(at, ChunkKind::Free, 0, 0);
  return parse_recording(image.bytes()).losses.damaged_chunks;
}

void a_chunk_that_is_missing_is_counted() {
  CHECK(parse_recording(small_image().bytes()).losses.damaged_chunks == 0);
  for (std::size_t at = 0; at < 4; ++at) {
    CHECK(damaged_without(at, 4, true) == 1);
    CHECK(damaged_without(at, 4, false) == 1);
    // A ring has freed it.
    CHECK(damaged_without(at, 4, true, 1) == 0);
    CHECK(damaged_without(at, 3, false) == 1);
    // In version 1 it may be a chunk whose writer had not begun.
    CHECK(damaged_without(at, 1, false) == 0);
  }
}

}  // namespace
}  // namespace kinetoscope

int main() {
  kinetoscope::a_whole_recording_is_read();
  kinetoscope::damage_does_no_harm();
  kinetoscope::numbers_of_ranges_are_taken_whatever_they_are();
  kinetoscope::a_compact_span_is_the_span();
  kinetoscope::spans_are_read_by_their_sites();
  kinetoscope::clips_to_the_caller();
  kinetoscope::a_chunk_that_is_missing_is_counted();
  kinetoscope::a_growing_recording_is_read_meanwhile();
  return kinetoscope::testing::checks_failed();
}
