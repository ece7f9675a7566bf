// cut_recording on whole and damaged recordings.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "core/recording/cut.h"
#include "core/recording/reader.h"
#include "recording_image.h"

namespace kinetoscope {
namespace {

using testing::RecordingImage;

// Two threads with eight spans each, every 10 ticks, in two modules; session 1 from tick `from` on.
RecordingImage shared_image(uint64_t from, uint64_t to, uint32_t what) {
  RecordingImage image(2048, 4);
  image.begin_chunk(0, ChunkKind::Dictionary, 0, 1);
  image.add_entry(0, Entry::String, {1}, "aten::mm");
  image.add_entry(0, Entry::Name, {1, 1, 0});
  image.add_entry(0, Entry::Module, {1, 1, 0, 0, 64, 0});
  image.add_entry(0, Entry::Module, {2, 1, 0, 0, 65, 0});
  image.add_entry(0, Entry::Shapes, {1, 2, 2, 2}, "[][][]");
  image.add_entry(0, Entry::Thread, {5, 55, 1, 0}, "main");
  image.add_entry(0, Entry::Thread, {6, 66, 2, 0}, "other");
  std::string window = "[" + std::to_string(what) + ", " + std::to_string(RecordingImage::kStart + from);
  for (int number = 0; number < 20; ++number) window += ", 0";
  window += ", " + std::to_string(to == 0 ? 0 : RecordingImage::kStart + to) + "]";
  const std::string key = "kinetoscope.session.1";
  image.add_entry(0, Entry::Info, {static_cast<uint32_t>(key.size())}, key + window);
  image.begin_chunk(1, ChunkKind::Spans, 5, 2);
  image.begin_chunk(2, ChunkKind::Spans, 6, 3);
  for (uint64_t at = 0; at < 8; ++at) {
    for (std::size_t chunk : {1, 2}) {
      if (chunk == 2 && at >= 2) continue;
      SpanRecord& span = image.add_span(chunk, 10 * at, 10 * at + 15);
      span.name = 1;
      span.module = at < 4 ? 1 : 2;
      span.shapes = 1;
    }
  }
  return image;
}

class Target {
 public:
  Target() : path_("/tmp/recording_cut_test-" + std::to_string(getpid())) { std::remove(path_.c_str()); }
  ~Target() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }
  std::vector<std::byte> bytes() const {
    std::ifstream file(path_, std::ios::binary);
    const std::vector<char> read((std::istreambuf_iterator<char>(file)), {});
    const auto* first = reinterpret_cast<const std::byte*>(read.data());
    return {first, first + read.size()};
  }

 private:
  const std::string path_;
};

void a_session_gets_its_part() {
  RecordingImage image = shared_image(35, 65, kRecordModules | kRecordStacks);
  const Target target;
  cut_recording(image.bytes(), 1, target.path());
  const std::vector<std::byte> bytes = target.bytes();
  const Recording recording = parse_recording(bytes);
  CHECK(recording.stopped);
  CHECK(recording.losses.damaged_chunks == 0 && recording.losses.damaged_header == 0);
  // Those that began at 40, 50 and 60; the last one had not ended.
  CHECK(recording.spans.size() == 3);
  CHECK(recording.losses.unfinished_spans == 1);
  CHECK(recording.thread_index.size() == 1 && recording.thread_index[0] == 5);
  CHECK(recording.dictionary.module_class.size() == 1 && recording.dictionary.module_address[0] == 65);
  CHECK(recording.spans.module[0] == 0 && recording.spans.shapes[0] == -1);
  CHECK(recording.dictionary.shape_dims.empty());
}

void without_a_window_it_is_all() {
  RecordingImage image = shared_image(35, 65, kRecordShapes | kRecordModules);
  const Target target;
  cut_recording(image.bytes(), 0, target.path());
  const std::vector<std::byte> bytes = target.bytes();
  const Recording recording = parse_recording(bytes);
  CHECK(recording.spans.size() == 10 && recording.thread_index.size() == 2);
  CHECK(recording.dictionary.module_class.size() == 2 && recording.spans.shapes[0] == 0);
  CHECK(recording.dictionary.info.empty());
}

// One thread with marks of steps of the program, of session 0 and of session 1, an operator after each, and a
// garbage collection, which session 1 asked for.
RecordingImage marked_image() {
  RecordingImage image(4096, 3);
  image.begin_chunk(0, ChunkKind::Dictionary, 0, 1);
  image.add_entry(0, Entry::String, {1}, kStepMark);
  image.add_entry(0, Entry::String, {2}, kCollection);
  image.add_entry(0, Entry::String, {3}, "aten::mm");
  for (uint32_t name : {1u, 2u, 3u}) image.add_entry(0, Entry::Name, {name, name, 0});
  image.add_entry(0, Entry::Thread, {5, 55, 1, 0}, "main");
  std::string window = "[" + std::to_string(~uint32_t{0}) + ", " + std::to_string(RecordingImage::kStart);
  for (int number = 0; number < 21; ++number) window += ", 0";
  for (const auto& [key, value] :
       {std::pair{std::string("kinetoscope.session.1"), window + "]"},
        std::pair{std::string("kinetoscope.session.1.") + std::string(kCollectionsKey), std::string("1")}})
    image.add_entry(0, Entry::Info, {static_cast<uint32_t>(key.size())}, key + value);
  image.begin_chunk(1, ChunkKind::Spans, 5, 2);
  uint64_t at = 0;
  const auto add = [&](uint32_t name, uint8_t scope, int64_t sequence, uint32_t parameter, uint16_t kept) {
    SpanRecord& span = image.add_span(1, at, at + 5);
    span.name = name;
    span.scope = scope;
    span.sequence = sequence;
    span.parameter = parameter;
    span.forward_thread = kept;
    at += 10;
  };
  for (const uint32_t owner : {0u, 1u, 2u}) {
    add(1, kUserScope, 7 + owner, owner, 2);
    add(3, 0, -1, 0, 4);
  }
  add(2, kUserScope, -1, 0, 2);
  return image;
}

std::vector<std::string> names_of(const Recording& recording) {
  std::vector<std::string> names;
  for (std::size_t row = 0; row < recording.spans.size(); ++row)
    names.emplace_back(recording.dictionary.strings[static_cast<std::size_t>(recording.spans.name[row])]);
  return names;
}

void marks_and_collections_are_of_those_who_made_and_asked_for_them() {
  RecordingImage image = marked_image();
  using Names = std::vector<std::string>;
  const Names first{"ProfilerStep#7", "aten::mm", "ProfilerStep#8", "aten::mm", "aten::mm"};
  const Names second{"ProfilerStep#7", "aten::mm", "aten::mm", "ProfilerStep#9", "aten::mm", "Python GC"};
  const Recording whole = parse_recording(image.bytes());
  CHECK(names_of(whole) == first);
  // The operator after a mark that was left out says what the mark would have said of its stack.
  CHECK(whole.spans.kept[3] == 4 && whole.spans.kept[4] == 2);
  CHECK(whole.spans.parameter[0] == -1 && whole.spans.parameter[2] == -1);
  for (const auto& [session, names] : {std::pair{0u, first}, std::pair{1u, second}}) {
    const Target target;
    cut_recording(image.bytes(), session, target.path());
    const std::vector<std::byte> bytes = target.bytes();
    const Recording recording = parse_recording(bytes);
    CHECK(names_of(recording) == names);
    CHECK(recording.losses.unmatched_notes == 0);
  }
}

// Calls of one thread, some written later than calls inside them; session 1 records from 100 to 900 and
// pauses from 300 to 400 and from 500 to 600.
RecordingImage called_image(uint32_t what) {
  RecordingImage image(4096, 3);
  image.begin_chunk(0, ChunkKind::Dictionary, 0, 1);
  const char* names[] = {"outer", "module", "inner", "c", "short", "within"};
  uint32_t id = 0;
  for (const char* name : names) {
    ++id;
    image.add_entry(0, Entry::String, {id}, name);
    image.add_entry(0, Entry::Name, {id, id, 0});
  }
  image.add_entry(0, Entry::Thread, {5, 55, 1, 0}, "main");
  std::string window = "[" + std::to_string(what) + ", " + std::to_string(RecordingImage::kStart + 100);
  for (int number = 0; number < 20; ++number) window += ", 0";
  for (const uint64_t tick : {900, 300, 400, 500, 600})
    window += ", " + std::to_string(RecordingImage::kStart + tick);
  const std::string key = "kinetoscope.session.1";
  image.add_entry(0, Entry::Info, {static_cast<uint32_t>(key.size())}, key + window + "]");
  image.begin_chunk(1, ChunkKind::Spans, 5, 2);
  const auto add = [&](uint32_t name, uint8_t scope, uint32_t depth, CallKind kind, uint64_t from,
                       uint64_t to) {
    SpanRecord& span = image.add_span(1, from, to);
    span.name = name;
    span.scope = scope;
    span.sequence = -1;
    span.parameter = depth << kCallDepthShift | kind;
  };
  // Calls of modules have been recorded for longer than others.
  add(2, kScopeModule, 2, kCallOfModule, 10, 950);
  add(1, kScopePython, 1, kCallOfPython, 50, 0);
  add(3, kScopePython, 3, kCallOfPython, 50, 450);
  add(4, kScopePython, 3, kCallOfC, 60, 420);
  add(5, kScopePython, 4, kCallOfPython, 310, 390);
  add(6, kScopePython, 4, kCallOfPython, 610, 620);
  return image;
}

struct Part {
  std::string name;
  int64_t start, end;
  bool begun_before, unfinished;
  bool operator==(const Part&) const = default;
};

void calls_are_cut_at_pauses_and_lie_in_their_places() {
  RecordingImage image = called_image(kRecordCalls | kRecordModuleSpans);
  const Target target;
  cut_recording(image.bytes(), 1, target.path());
  const std::vector<std::byte> bytes = target.bytes();
  const Recording recording = parse_recording(bytes);
  std::vector<Part> found;
  const std::vector<std::string> names = names_of(recording);
  for (std::size_t row = 0; row < names.size(); ++row) {
    const int64_t start = recording.spans.start_ns[row];
    found.push_back({names[row], start, start + recording.spans.duration_ns[row],
                     (recording.spans.flags[row] & kStateBegunBefore) != 0,
                     (recording.spans.flags[row] & kStateUnfinished) != 0});
    CHECK(recording.spans.parameter[row] == -1);
  }
  const std::vector<Part> expected{
      {"outer", 0, 200, true, true},   {"module", 0, 200, true, true},   {"inner", 0, 200, true, true},
      {"outer", 300, 400, true, true}, {"module", 300, 400, true, true}, {"inner", 300, 350, true, false},
      {"outer", 500, 800, true, true}, {"module", 500, 800, true, true}, {"within", 510, 520, false, false},
  };
  CHECK(found == expected);
  CHECK(recording.losses.unfinished_spans == 0);

  RecordingImage of_modules = called_image(kRecordModuleSpans);
  const Target other;
  cut_recording(of_modules.bytes(), 1, other.path());
  const std::vector<std::byte> less = other.bytes();
  CHECK(names_of(parse_recording(less)) == std::vector<std::string>({"module", "module", "module"}));
}

void damage_does_no_harm() {
  const RecordingImage spans = shared_image(35, 65, ~uint32_t{0}), calls = called_image(~uint32_t{0});
  std::mt19937 random(11);
  int cut = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    RecordingImage image = trial % 2 == 0 ? spans : calls;
    std::vector<std::byte>& bytes = image.storage();
    for (std::size_t change = 1 + random() % 8; change > 0; --change)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    if (trial % 3 == 0) bytes.resize(random() % bytes.size());
    const std::vector<std::byte> exact(bytes.begin(), bytes.end());
    const Target target;
    try {
      cut_recording(exact, 1, target.path());
      const std::vector<std::byte> made = target.bytes();
      static_cast<void>(parse_recording(made));
      ++cut;
    } catch (const RefusedRecording&) {
      continue;
    }
  }
  CHECK(cut > 300);
}

}  // namespace
}  // namespace kinetoscope

int main() {
  kinetoscope::a_session_gets_its_part();
  kinetoscope::without_a_window_it_is_all();
  kinetoscope::marks_and_collections_are_of_those_who_made_and_asked_for_them();
  kinetoscope::calls_are_cut_at_pauses_and_lie_in_their_places();
  kinetoscope::damage_does_no_harm();
  return kinetoscope::testing::checks_failed();
}
