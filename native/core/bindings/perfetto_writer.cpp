#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "../perfetto/writer.h"
#include "blocks.h"
#include "module.h"

namespace kinetoscope {
namespace {

// Reads the arguments of the writer, and keeps the arrays alive for as long as it reads them.
class Arguments {
 public:
  template <typename T>
  std::span<const T> column(nb::handle value, const char* name) {
    Array<T> array;
    if (!nb::try_cast(value, array, false)) {
      throw nb::type_error(
          (std::string("PerfettoWriter: ") + name + " is not a contiguous array of its type").c_str());
    }
    arrays_.push_back(nb::borrow(value));
    return view(array);
  }

  // A column of a mapping; empty where it has none.
  template <typename T>
  std::span<const T> column_of(const nb::dict& columns, const char* name) {
    return columns.contains(name) ? column<T>(columns[name], name) : std::span<const T>{};
  }

  template <typename... T>
  std::variant<std::span<const T>...> any_column(nb::handle value, const std::string& name) {
    std::optional<std::variant<std::span<const T>...>> found;
    const auto try_one = [&]<typename One>(std::type_identity<One>) {
      Array<One> array;
      if (found || !nb::try_cast(value, array, false)) return;
      found = view(array);
    };
    (try_one(std::type_identity<T>{}), ...);
    if (!found)
      throw nb::type_error(
          ("PerfettoWriter: the values of " + name + " are not a contiguous array of numbers").c_str());
    arrays_.push_back(nb::borrow(value));
    return *found;
  }

 private:
  std::vector<nb::object> arrays_;
};

PerfettoFact::Kind fact_kind(const std::string& kind) {
  constexpr const char* kNames[] = {"number", "always", "pointer", "flag",
                                    "string", "text",   "stack",   "object"};
  for (std::size_t at = 0; at < std::size(kNames); ++at) {
    if (kind == kNames[at]) return static_cast<PerfettoFact::Kind>(at);
  }
  throw nb::value_error(("PerfettoWriter: unknown kind of fact " + kind).c_str());
}

PerfettoTrack::Kind track_kind(const std::string& kind) {
  constexpr const char* kNames[] = {"process", "thread", "group", "counter"};
  for (std::size_t at = 0; at < std::size(kNames); ++at) {
    if (kind == kNames[at]) return static_cast<PerfettoTrack::Kind>(at);
  }
  throw nb::value_error(("PerfettoWriter: unknown kind of track " + kind).c_str());
}

// (name, kind, values) or (name, kind, values, texts)
std::vector<PerfettoFact> to_facts(nb::handle facts, Arguments& arguments) {
  std::vector<PerfettoFact> read;
  for (const nb::handle fact : facts) {
    const std::string name = to_utf8(fact[0]);
    PerfettoFact& one = read.emplace_back(PerfettoFact{
        .name = name,
        .kind = fact_kind(nb::cast<std::string>(fact[1])),
        .values = arguments.any_column<int8_t, uint8_t, int32_t, int64_t, uint64_t, double>(fact[2], name),
    });
    if (nb::len(fact) > 3) one.texts = to_utf8_list(fact[3], "the texts of a fact");
  }
  return read;
}

// (rows or None, facts)
std::vector<PerfettoFacts> to_groups(nb::handle groups, Arguments& arguments) {
  std::vector<PerfettoFacts> read;
  for (const nb::handle group : groups) {
    const nb::object rows = group[0];
    PerfettoFacts& one = read.emplace_back();
    one.of_every_row = rows.is_none();
    if (!one.of_every_row) one.rows = arguments.column<int32_t>(rows, "the rows of facts");
    one.facts = to_facts(group[1], arguments);
  }
  return read;
}

// (kind, name, parent, process, thread, order, unit, note)
std::vector<PerfettoTrack> to_tracks(nb::handle tracks) {
  std::vector<PerfettoTrack> read;
  for (const nb::handle track : tracks) {
    read.push_back({
        .kind = track_kind(nb::cast<std::string>(track[0])),
        .name = to_utf8(track[1]),
        .parent = nb::cast<int32_t>(track[2]),
        .process = nb::cast<int64_t>(track[3]),
        .thread = nb::cast<int64_t>(track[4]),
        .order = nb::cast<int32_t>(track[5]),
        .unit = to_utf8(track[6]),
        .note = to_utf8(track[7]),
    });
  }
  return read;
}

std::vector<PerfettoCounter> to_counters(nb::handle counters, Arguments& arguments) {
  std::vector<PerfettoCounter> read;
  for (const nb::handle counter : counters) {
    read.push_back({nb::cast<int32_t>(counter[0]),
                    arguments.column<int64_t>(counter[1], "the times of a counter"),
                    arguments.any_column<int64_t, double>(counter[2], "a counter")});
  }
  return read;
}

std::vector<PerfettoArrows> to_arrows(nb::handle arrows, Arguments& arguments) {
  std::vector<PerfettoArrows> read;
  for (const nb::handle some : arrows) {
    read.push_back({arguments.column<int32_t>(some[0], "the sources of arrows"),
                    arguments.column<int32_t>(some[1], "the targets of arrows")});
  }
  return read;
}

class PythonPerfettoWriter {
 public:
  PythonPerfettoWriter(nb::dict spans, nb::object span_facts, nb::dict moments, nb::object moment_facts,
                       nb::object counters, nb::object arrows, nb::object strings, nb::object categories,
                       nb::dict stacks, nb::object tracks, Array<int32_t> thread_first_track,
                       nb::object metadata, int64_t realtime_ns, uint64_t identity, std::size_t block_bytes) {
    PerfettoColumns columns{
        .spans = {.start_ns = arguments_.column_of<int64_t>(spans, "start_ns"),
                  .duration_ns = arguments_.column_of<int64_t>(spans, "duration_ns"),
                  .name = arguments_.column_of<int32_t>(spans, "name"),
                  .category = arguments_.column_of<int32_t>(spans, "category"),
                  .thread = arguments_.column_of<int32_t>(spans, "thread"),
                  .lane = arguments_.column_of<int32_t>(spans, "lane"),
                  .instant = arguments_.column_of<uint8_t>(spans, "instant"),
                  .location = arguments_.column_of<int32_t>(spans, "location")},
        .span_facts = to_groups(span_facts, arguments_),
        .moments = {.name = moments.contains("name") ? to_utf8(moments["name"]) : "",
                    .category = moments.contains("category") ? to_utf8(moments["category"]) : "",
                    .time_ns = arguments_.column_of<int64_t>(moments, "time_ns"),
                    .thread = arguments_.column_of<int32_t>(moments, "thread")},
        .moment_facts = to_facts(moment_facts, arguments_),
        .counters = to_counters(counters, arguments_),
        .arrows = to_arrows(arrows, arguments_),
    };
    PerfettoTables tables{
        .strings = to_utf8_list(strings, "strings"),
        .categories = to_utf8_list(categories, "categories"),
        .stacks = {.parent = arguments_.column_of<int32_t>(stacks, "parent"),
                   .frame = arguments_.column_of<int32_t>(stacks, "frame"),
                   .function = arguments_.column_of<int32_t>(stacks, "function"),
                   .file = arguments_.column_of<int32_t>(stacks, "file"),
                   .line = arguments_.column_of<int32_t>(stacks, "line")},
        .tracks = to_tracks(tracks),
        .thread_first_track = view(thread_first_track),
        .metadata = {},
    };
    for (const nb::handle entry : metadata)
      tables.metadata.emplace_back(to_utf8(entry[0]), to_utf8(entry[1]));
    nb::gil_scoped_release released;
    writer_ = std::make_unique<PerfettoWriter>(std::move(columns), std::move(tables), realtime_ns, identity,
                                               block_bytes);
  }

  PerfettoWriter& writer() { return *writer_; }

 private:
  Arguments arguments_;
  std::unique_ptr<PerfettoWriter> writer_;
};

}  // namespace

void bind_perfetto_writer(nb::module_& module) {
  using Writer = PythonPerfettoWriter;
  nb::class_<Writer> type(module, "PerfettoWriter", nb::is_final(),
                          R"(Writes a Perfetto trace; iterating yields its bytes in blocks.

A span's track is thread_first_track[thread] + lane; spans are sorted by thread, then start, then the longer one
first, and those of a lane nest. Times are nanoseconds. `spans` has start_ns, duration_ns, name (string id),
category (row of `categories`), thread, lane, and may have instant and location (row of frames). `moments` has name
and category (texts), time_ns and thread. `stacks` has parent and frame, and by frame function, file and line.
A fact is (name, kind, values) and for `text` and `object` the texts too: see the kinds in perfetto_annotations.h.
`span_facts` has (rows or None for every row, facts). A track is (kind, name, parent, process, thread, order, unit,
note), a counter (track, times, values), arrows are (source rows, target rows).

Raises:
    ValueError: Columns differ in length or order, or name rows that do not exist.
    TypeError: A column is of another type.)");
  type.def(
      nb::init<nb::dict, nb::object, nb::dict, nb::object, nb::object, nb::object, nb::object, nb::object,
               nb::dict, nb::object, Array<int32_t>, nb::object, int64_t, uint64_t, std::size_t>(),
      nb::kw_only(), nb::arg("spans"), nb::arg("span_facts"), nb::arg("moments"), nb::arg("moment_facts"),
      nb::arg("counters"), nb::arg("arrows"), nb::arg("strings"), nb::arg("categories"), nb::arg("stacks"),
      nb::arg("tracks"), nb::arg("thread_first_track").noconvert(), nb::arg("metadata"),
      nb::arg("realtime_ns") = 0, nb::arg("identity") = 0, nb::arg("block_bytes") = 4 << 20);
  bind_blocks(type);
}

}  // namespace kinetoscope
