#include "module.h"

#include <nanobind/stl/optional.h>

#include <optional>
#include <stdexcept>

#include "../chrome/json.h"
#include "../spans/allocations.h"
#include "../spans/calls.h"
#include "../spans/contents.h"
#include "../spans/grouping.h"
#include "../spans/intervals.h"
#include "../spans/linking.h"
#include "../spans/nesting.h"
#include "../spans/replay.h"

namespace kinetoscope {
namespace {

nb::dict nest_arrays(Array<int32_t> thread, Array<int64_t> start_ns, Array<int64_t> duration_ns) {
  Nesting nesting;
  {
    nb::gil_scoped_release released;
    nesting = nest(view(thread), view(start_ns), view(duration_ns));
  }
  nb::dict dict;
  dict["parent"] = to_array(std::move(nesting.parent));
  dict["depth"] = to_array(std::move(nesting.depth));
  dict["lane"] = to_array(std::move(nesting.lane));
  dict["self_ns"] = to_array(std::move(nesting.self_ns));
  return dict;
}

auto nearest_marked_array(Array<int32_t> parent, Array<int32_t> depth, Array<bool> marked) {
  Column<int32_t> nearest;
  {
    nb::gil_scoped_release released;
    nearest = nearest_marked(view(parent), view(depth), view(marked));
  }
  return to_array(std::move(nearest));
}

auto lies_in_array(Array<int32_t> thread, Array<int64_t> start_ns, Array<int64_t> duration_ns,
                   Array<int64_t> rows) {
  Column<bool> inside;
  {
    nb::gil_scoped_release released;
    inside = lies_in(view(thread), view(start_ns), view(duration_ns), view(rows));
  }
  return to_array(std::move(inside));
}

auto running_at_array(Array<int64_t> start_ns, Array<int64_t> duration_ns, Array<int32_t> parent,
                      Array<int64_t> rows, Array<int64_t> time_ns) {
  Column<int64_t> running;
  {
    nb::gil_scoped_release released;
    running = running_at({view(start_ns), view(duration_ns), view(parent), view(rows)}, view(time_ns));
  }
  return to_array(std::move(running));
}

auto sums_below_array(Array<int32_t> parent, Array<int32_t> depth, Array<int64_t> own) {
  Column<int64_t> sums;
  {
    nb::gil_scoped_release released;
    sums = sums_below(view(parent), view(depth), view(own));
  }
  return to_array(std::move(sums));
}

nb::dict rebuild_calls_arrays(Array<int32_t> thread, Array<int64_t> start_ns, Array<int64_t> duration_ns,
                              Array<int32_t> path, Array<uint16_t> kept, Array<int32_t> path_begin,
                              Array<int32_t> key, Array<int32_t> frames) {
  Calls calls;
  {
    nb::gil_scoped_release released;
    calls = rebuild_calls({view(thread), view(start_ns), view(duration_ns), view(path), view(kept)},
                          {view(path_begin), view(key), view(frames)});
  }
  nb::dict dict;
  dict["thread"] = to_array(std::move(calls.thread));
  dict["start_ns"] = to_array(std::move(calls.start_ns));
  dict["duration_ns"] = to_array(std::move(calls.duration_ns));
  dict["step"] = to_array(std::move(calls.step));
  dict["depth"] = to_array(std::move(calls.depth));
  dict["unsure"] = to_array(std::move(calls.unsure));
  return dict;
}

auto link_backward_arrays(Array<int32_t> thread, Array<int64_t> start_ns, Array<uint8_t> scope,
                          Array<int64_t> sequence, Array<int32_t> forward_thread) {
  Column<int32_t> forward;
  {
    nb::gil_scoped_release released;
    forward = link_backward(view(thread), view(start_ns), view(scope), view(sequence), view(forward_thread));
  }
  return to_array(std::move(forward));
}

nb::dict inherit_modules_arrays(Array<int32_t> parent, Array<int32_t> module, Array<int32_t> stack,
                                Array<int32_t> forward, Array<int32_t> parameter,
                                Array<int32_t> parameter_module, Array<uint8_t> scope) {
  InheritedModules inherited;
  {
    nb::gil_scoped_release released;
    inherited = inherit_modules({view(parent), view(module), view(stack), view(forward), view(parameter),
                                 view(parameter_module), view(scope)});
  }
  nb::dict dict;
  dict["module"] = to_array(std::move(inherited.module));
  dict["forward_stack"] = to_array(std::move(inherited.forward_stack));
  return dict;
}

nb::dict attribute_allocations_arrays(Array<int32_t> span_thread, Array<int64_t> span_start_ns,
                                      Array<int64_t> span_duration_ns, Array<int32_t> span_parent,
                                      Array<int32_t> span_lane, Array<int64_t> time_ns, Array<int32_t> thread,
                                      Array<uint64_t> address, Array<int64_t> bytes,
                                      std::optional<Array<int64_t>> freed_bytes) {
  AttributedAllocations attributed;
  {
    nb::gil_scoped_release released;
    attributed = attribute_allocations(
        {view(span_thread), view(span_start_ns), view(span_duration_ns), view(span_parent), view(span_lane)},
        {view(time_ns), view(thread), view(address), view(bytes),
         freed_bytes ? view(*freed_bytes) : std::span<const int64_t>{}});
  }
  nb::dict dict;
  dict["span"] = to_array(std::move(attributed.span));
  dict["match"] = to_array(std::move(attributed.match));
  dict["total_bytes"] = to_array(std::move(attributed.total_bytes));
  dict["span_self_bytes"] = to_array(std::move(attributed.span_self_bytes));
  dict["span_bytes"] = to_array(std::move(attributed.span_bytes));
  dict["unmatched_frees"] = attributed.unmatched_frees;
  return dict;
}

nb::tuple group_arrays(nb::sequence keys, std::optional<Array<bool>> where) {
  std::vector<Array<int32_t>> int32_keys;
  std::vector<Array<int64_t>> int64_keys;
  std::vector<KeyColumn> columns;
  for (const nb::handle key : keys) {
    Array<int32_t> narrow;
    Array<int64_t> wide;
    if (nb::try_cast(key, narrow, false)) {
      columns.emplace_back(view(narrow));
      int32_keys.push_back(narrow);
    } else if (nb::try_cast(key, wide, false)) {
      columns.emplace_back(view(wide));
      int64_keys.push_back(wide);
    } else {
      throw nb::type_error("group: every key must be a one-dimensional, contiguous array of int32 or int64");
    }
  }
  Grouping grouping;
  {
    nb::gil_scoped_release released;
    grouping = group_rows(columns, where ? view(*where) : std::span<const bool>{});
  }
  return nb::make_tuple(to_array(std::move(grouping.group_of)), to_array(std::move(grouping.first_row)));
}

auto reduce_arrays(Reduction reduction, const Array<int32_t>& group_of, std::size_t groups,
                   std::span<const int64_t> values, const std::optional<Array<uint8_t>>& skip) {
  Column<int64_t> result;
  {
    nb::gil_scoped_release released;
    result = reduce_groups(reduction, view(group_of), groups, values,
                           skip ? view(*skip) : std::span<const uint8_t>{});
  }
  return to_array(std::move(result));
}

template <Reduction reduction>
auto reduce_values(Array<int32_t> group_of, std::size_t groups, Array<int64_t> values,
                   std::optional<Array<uint8_t>> skip) {
  return reduce_arrays(reduction, group_of, groups, view(values), skip);
}

auto count_groups(Array<int32_t> group_of, std::size_t groups, std::optional<Array<uint8_t>> skip) {
  return reduce_arrays(Reduction::Count, group_of, groups, {}, skip);
}

auto group_medians_array(Array<int32_t> group_of, std::size_t groups, Array<int64_t> values) {
  Column<int64_t> medians;
  {
    nb::gil_scoped_release released;
    medians = group_medians(view(group_of), groups, view(values));
  }
  return to_array(std::move(medians));
}

auto replay_collectives_array(Array<int64_t> collective, Array<int64_t> before, Array<int64_t> own_ns,
                              Array<int64_t> first_visit, Array<int64_t> transfer_ns) {
  Column<int64_t> left_ns;
  {
    nb::gil_scoped_release released;
    left_ns = replay_collectives(
        {view(collective), view(before), view(own_ns), view(first_visit), view(transfer_ns)});
  }
  return to_array(std::move(left_ns));
}

nb::dict find_repeats_arrays(Array<int32_t> kind, Array<int32_t> cycle, Array<uint8_t> flags,
                             Array<int64_t> first, Array<int32_t> argument, Array<int64_t> storage,
                             Array<int64_t> version, Array<int64_t> offset, Array<uint8_t> tensor_flags,
                             Array<uint64_t> content) {
  RepeatedCalls found;
  {
    nb::gil_scoped_release released;
    found = find_repeats({view(kind), view(cycle), view(flags), view(first), view(argument), view(storage),
                          view(version), view(offset), view(tensor_flags), view(content)});
  }
  nb::dict dict;
  dict["before"] = to_array(std::move(found.before));
  dict["overwritten_by"] = to_array(std::move(found.overwritten_by));
  return dict;
}

auto descends_from_same_arrays(Array<int32_t> parent, Array<int32_t> key) {
  Column<uint8_t> descends;
  {
    nb::gil_scoped_release released;
    descends = descends_from_same(view(parent), view(key));
  }
  return to_array(std::move(descends));
}

nb::tuple to_pair(Moments&& moments) {
  return nb::make_tuple(to_array(std::move(moments.start_ns)), to_array(std::move(moments.end_ns)));
}

nb::tuple unite_arrays(Array<int64_t> start_ns, Array<int64_t> end_ns) {
  Moments made;
  {
    nb::gil_scoped_release released;
    made = unite({view(start_ns), view(end_ns)});
  }
  return to_pair(std::move(made));
}

nb::tuple first_layers_arrays(Array<int64_t> start_ns, Array<int64_t> end_ns, nb::sequence layers) {
  std::vector<std::pair<Array<int64_t>, Array<int64_t>>> arrays;
  for (nb::handle layer : layers)
    arrays.push_back({nb::cast<Array<int64_t>>(layer[0]), nb::cast<Array<int64_t>>(layer[1])});
  std::vector<Stretches> stretches;
  for (const auto& [starts, ends] : arrays) stretches.push_back({view(starts), view(ends)});
  LayeredMoments moments;
  {
    nb::gil_scoped_release released;
    moments = first_layers({view(start_ns), view(end_ns)}, stretches);
  }
  return nb::make_tuple(to_array(std::move(moments.window)), to_array(std::move(moments.stretch)),
                        to_array(std::move(moments.start_ns)), to_array(std::move(moments.end_ns)));
}

template <Moments (*combine)(const Stretches&, const Stretches&)>
nb::tuple combine_arrays(Array<int64_t> start_ns, Array<int64_t> end_ns, Array<int64_t> other_start_ns,
                         Array<int64_t> other_end_ns) {
  Moments made;
  {
    nb::gil_scoped_release released;
    made = combine({view(start_ns), view(end_ns)}, {view(other_start_ns), view(other_end_ns)});
  }
  return to_pair(std::move(made));
}

auto length_before_array(Array<int64_t> start_ns, Array<int64_t> end_ns, Array<int64_t> time_ns) {
  Column<int64_t> length;
  {
    nb::gil_scoped_release released;
    length = length_before({view(start_ns), view(end_ns)}, view(time_ns));
  }
  return to_array(std::move(length));
}

nb::bytes escape_json(nb::str text) {
  std::string escaped;
  append_json_escaped(to_utf8(text), escaped);
  return nb::bytes(escaped.data(), escaped.size());
}

bool is_json_text(nb::str text) { return is_json(to_utf8(text)); }

auto array(const char* name) { return nb::arg(name).noconvert(); }
auto optional_array(const char* name) { return nb::arg(name).noconvert().none() = nb::none(); }

void bind_structure(nb::module_& module) {
  define(module, "nest", &nest_arrays, R"(Finds each span's parent, depth, lane and self time.

The spans in lane 0 of a thread nest. Spans that partly overlap others are in lanes 1, 2, ..., without parent, depth
or self time. Spans must be sorted by (thread, start), parents before children.

Returns:
    The columns parent (row, -1 for none), depth, lane and self_ns.

Raises:
    ValueError: Columns have different lengths or are not sorted.)",
         array("thread"), array("start_ns"), array("duration_ns"));
  define(module, "nearest_marked", &nearest_marked_array,
         R"(Finds for each row of a forest itself, or its nearest ancestor, that is marked.

Args:
    parent: The row of each row's parent, -1 for none.
    depth: How many ancestors each row has. Only read if a parent comes after its child.
    marked: Which rows are looked for.

Returns:
    The rows found, -1 for none.

Raises:
    ValueError: Columns have different lengths, or a parent is out of range.)",
         array("parent"), array("depth"), array("marked"));
  define(module, "lies_in", &lies_in_array,
         R"(Marks the spans that lie in some of them on their thread, those themselves included.

Spans must be sorted as for nest.

Args:
    thread: Of all spans. So for the next ones.
    start_ns: When each began.
    duration_ns: How long each ran.
    rows: The spans around, ascending.

Raises:
    ValueError: Columns have different lengths, or a row is out of range or out of order.)",
         array("thread"), array("start_ns"), array("duration_ns"), array("rows"));
  define(module, "running_at", &running_at_array,
         R"(Finds the innermost of some spans that runs at each moment.

Args:
    start_ns: Of all spans. So for the next ones.
    duration_ns: How long each ran.
    parent: The nearest of the chosen spans around each, -1 for none.
    rows: The chosen spans, which nest and are in order of time.
    time_ns: The moments; fastest where they ascend.

Returns:
    The rows found, -1 outside all.

Raises:
    ValueError: Columns have different lengths, or a row is out of range.)",
         array("start_ns"), array("duration_ns"), array("parent"), array("rows"), array("time_ns"));
  define(module, "sums_below", &sums_below_array,
         R"(Adds to the value of each row of a forest those of all rows below it.

`parent` and `depth` are those of nearest_marked.

Raises:
    ValueError: Columns have different lengths, or a parent is out of range.)",
         array("parent"), array("depth"), array("own"));
  define(module, "rebuild_calls", &rebuild_calls_arrays,
         R"(Rebuilds Python calls from the operators that ran in them.

Operators are sorted by thread, then time. The calls around them, outermost first, are the steps path_begin[path] to
path_begin[path + 1]; two steps can be the same call if their keys are equal. `frames` is the number of frames around
a step, and `kept` is the column of spans. An operator with a negative duration only shows which calls continued.

Returns:
    The columns thread, start_ns, duration_ns, step (that of the call's first operator), depth and unsure.

Raises:
    ValueError: Columns have different lengths, or a path is out of range.)",
         array("thread"), array("start_ns"), array("duration_ns"), array("path"), array("kept"),
         array("path_begin"), array("key"), array("frames"));
  define(module, "link_backward", &link_backward_arrays, R"(Finds the forward span of each backward span.

It is the last span on the forward thread with the same sequence number that started before it, is not backward and
has no forward thread itself. Spans must be sorted by (thread, start).

Returns:
    The forward span's row, -1 for none.

Raises:
    ValueError: Columns have different lengths or are not sorted by thread.)",
         array("thread"), array("start_ns"), array("scope"), array("sequence"), array("forward_thread"));
  define(module, "inherit_modules", &inherit_modules_arrays, R"(Assigns each span its module.

Backward spans have that of their forward span, AccumulateGrad that of its parameter, the engine's wrapper that of its
backward child. Below a backward span, the module that called backward() is ignored. Other spans without a module have
that of their parent.

Returns:
    The columns module and forward_stack (the forward span's stack, for backward spans and all below them).

Raises:
    ValueError: Columns have different lengths.)",
         array("parent"), array("module"), array("stack"), array("forward"), array("parameter"),
         array("parameter_module"), array("scope"));
  define(module, "attribute_allocations", &attribute_allocations_arrays,
         R"(Finds the span of each allocation and free, the free of each allocation, and sums of bytes.

Spans must be sorted by (thread, start) and nested by nest(), events sorted by time, with bytes 0 for frees. Frees of
unknown blocks count zero bytes in total_bytes, and `freed_bytes` (0 without) for their spans.

Returns:
    Per event: span, match, total_bytes (live bytes after it); per span: span_self_bytes, span_bytes (with children);
    and unmatched_frees.

Raises:
    ValueError: Columns have different lengths or are not sorted.)",
         array("span_thread"), array("span_start_ns"), array("span_duration_ns"), array("span_parent"),
         array("span_lane"), array("time_ns"), array("thread"), array("address"), array("bytes"),
         optional_array("freed_bytes"));
}

void bind_grouping(nb::module_& module) {
  define(module, "group", &group_arrays,
         R"(Groups rows with equal keys; groups are numbered in the order of their first rows.

Args:
    keys: Arrays of int32 or int64 with equal lengths.
    where: The rows to group; others get group -1.

Returns:
    (group_of per row, first_row per group).

Raises:
    ValueError: There are no keys, or they have different lengths.)",
         nb::arg("keys"), optional_array("where"));
  define(module, "group_counts", &count_groups,
         R"(Counts the rows of each group, without rows of group -1 or with a non-zero skip.)",
         array("group_of"), nb::arg("groups"), optional_array("skip"));
  define(module, "group_sums", &reduce_values<Reduction::Sum>,
         R"(Sums the values of each group, without rows of group -1 or with a non-zero skip.)",
         array("group_of"), nb::arg("groups"), array("values"), optional_array("skip"));
  define(module, "group_min", &reduce_values<Reduction::Least>,
         R"(The minimum of each group, over the same rows as group_sums; 0 for empty groups.)",
         array("group_of"), nb::arg("groups"), array("values"), optional_array("skip"));
  define(module, "group_max", &reduce_values<Reduction::Most>,
         R"(The maximum of each group, over the same rows as group_sums; 0 for empty groups.)",
         array("group_of"), nb::arg("groups"), array("values"), optional_array("skip"));
  define(module, "group_medians", &group_medians_array,
         R"(The median of each group without rows of group -1, rounded down; -1 for empty groups.)",
         array("group_of"), nb::arg("groups"), array("values"));
  define(module, "replay_collectives", &replay_collectives_array,
         R"(Runs the collectives of many ranks again, with given times between them.

A visit is a rank at a collective; those of a collective stand in a row.

Args:
    collective: The collective of each visit. So for the next two.
    before: The visit of the same rank that it follows, -1 for its first one.
    own_ns: How long the rank takes from one to the other.
    first_visit: The first visit of each collective, and at the end the number of visits.
    transfer_ns: How long each collective takes once its last rank has arrived.

Returns:
    When each collective ends, -1 for those that wait for each other.

Raises:
    ValueError: Columns have different lengths, or an index is out of range.)",
         array("collective"), array("before"), array("own_ns"), array("first_visit"), array("transfer_ns"));
  define(
      module, "find_repeats", &find_repeats_arrays,
      R"(Finds calls of operators whose result existed already, by value numbering; calls are in order of time.

Args:
    kind: Equal for calls of one operator with the same other arguments. So for each call:
    cycle: Between two cycles anything may have been written.
    flags: 1 torch's own, 2 determined, 4 writes to arguments, 8 fills, 16 overwrites its first argument as a whole,
        32 has running statistics as arguments 3 and 4, 64 may write to what is not known.
    first: The first tensor of each call, and at the end the number of tensors.
    argument: The place of each tensor among the arguments or the results. So for each tensor:
    storage: The number of its storage, 0 for none or an unknown one.
    version: How often it was written.
    offset: Where in the storage it begins; of a number of Python its bits.
    tensor_flags: 1 a result, 2 others may write to it, 4 has all of its storage, 8 a number of Python.
    content: A hash of its values, 0 where these were not read.

Returns:
    Per call: before, the last call before with the same result, and overwritten_by, for a fill the call that overwrote
    all of it before anything read it; -1 for none.

Raises:
    ValueError: Columns have different lengths, or `first` is not in order.)",
      array("kind"), array("cycle"), array("flags"), array("first"), array("argument"), array("storage"),
      array("version"), array("offset"), array("tensor_flags"), array("content"));
  define(module, "descends_from_same", &descends_from_same_arrays,
         R"(Returns 1 for rows that have an ancestor with the same key, else 0.

Pass the result as skip to count the totals of recursive spans once.

Raises:
    ValueError: Columns have different lengths, or a parent comes after its child.)",
         array("parent"), array("key"));
}

// Arguments are converted: stretches of time are often every second column of an array.
void bind_intervals(nb::module_& module) {
  const auto start = nb::arg("start_ns"), end = nb::arg("end_ns");
  const auto other_start = nb::arg("other_start_ns"), other_end = nb::arg("other_end_ns");
  define(module, "unite", &unite_arrays,
         R"(The moments in any of some stretches of time: the starts and ends of stretches in order and apart.

Empty and backward ones count for nothing.

Raises:
    ValueError: Columns have different lengths.)",
         start, end);
  define(
      module, "first_layers", &first_layers_arrays,
      R"(Finds which of several layers of stretches of time has each moment of some windows: the first one that has it.

Args:
    start_ns: When each window begins.
    end_ns: When each window ends.
    layers: The starts and ends of the stretches of each layer, in order and without overlaps.

Returns:
    Stretches of time, window by window, as columns: the window, the stretch of all layers, one layer after the other,
    -1 where no layer has the moment, the start and the end.

Raises:
    ValueError: Columns have different lengths.)",
      start, end, nb::arg("layers"));
  define(module, "join", &combine_arrays<join>, R"(The moments in either of two results of unite.)", start,
         end, other_start, other_end);
  define(module, "intersect", &combine_arrays<intersect>, R"(The moments in both of two results of unite.)",
         start, end, other_start, other_end);
  define(module, "subtract", &combine_arrays<subtract>,
         R"(The moments in one result of unite and not in another.)", start, end, other_start, other_end);
  define(module, "length_before", &length_before_array,
         R"(How long the part of a result of unite before each moment is.

Raises:
    ValueError: Columns have different lengths.)",
         start, end, nb::arg("time_ns"));
}

}  // namespace
}  // namespace kinetoscope

NB_MODULE(_core, module) {
  using namespace kinetoscope;
  nb::set_leak_warnings(false);
  module.doc() =
      "Kinetoscope's native core: reads recordings, nests, links and groups columns, reads and writes Chrome "
      "traces.";
  bind_recording(module);
  bind_structure(module);
  bind_grouping(module);
  bind_intervals(module);
  define(module, "escape_json", &escape_json,
         "Escapes text for a JSON string; returns UTF-8 without the quotes.", nb::arg("text"));
  define(module, "is_json", &is_json_text, "Returns whether the text is exactly one valid JSON value.",
         nb::arg("text"));
  bind_chrome_writer(module);
  bind_chrome_reader(module);
}
