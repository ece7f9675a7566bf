// Rings that run for as long as they like: the dictionary keeps the names of all records that are there, and
// nothing else.
#include "recorder/dictionary_collection.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "check.h"
#include "core/recording/clone.h"
#include "core/recording/cut.h"
#include "core/recording/mapped_file.h"
#include "core/recording/reader.h"
#include "recorder/clock.h"
#include "recorder/maintenance_thread.h"
#include "recorder/session.h"
#include "recorder/thread_state.h"
#include "torch_threads_without_torch.h"

using namespace kinetoscope;

namespace {

constexpr int64_t kPatienceNs = 10'000'000'000;

std::string temporary_path(const char* name) {
  return (std::filesystem::temp_directory_path() / (std::string(name) + "-" + std::to_string(getpid())))
      .string();
}

// A recording from its begin to its end.
class Running {
 public:
  Running(uint32_t generation, uint64_t ring_bytes, bool helped = true)
      : path_(temporary_path("kinetoscope-collection")),
        file_(std::make_shared<RecordingFile>(path_, ring_bytes)),
        session_(std::make_shared<Session>(file_, generation, kRecordStacks | kRecordShapes)) {
    file_->add_clock_pair(read_clock_pair());
    file_->header().start_tick = read_tick();
    if (helped) maintenance_thread::watch(file_, session_);
    file_->publish(0);
    Session::set_current(session_.get());
  }
  ~Running() {
    stop();
    maintenance_thread::release(file_, session_);
    unlink(path_.c_str());
  }
  void stop() {
    if (Session::current() == nullptr) return;
    Session::set_current(nullptr);
    CHECK(wait_until_idle(kPatienceNs));
    session_->dictionary().end_collections();
    file_->add_clock_pair(read_clock_pair());
    file_->header().stop_tick = read_tick();
    file_->mark_stopped();
  }
  const std::string& path() const { return path_; }
  Session& session() { return *session_; }
  FileHeader& header() { return file_->header(); }

 private:
  const std::string path_;
  const std::shared_ptr<RecordingFile> file_;
  const std::shared_ptr<Session> session_;
};

uint32_t name_of(ThreadState& thread, Session& session, const std::string& text) {
  const TextKey key{hash_bytes(text.data(), text.size()), text.size()};
  if (const uint32_t known = thread.text_names.find(key); known != 0) return known;
  std::lock_guard lock(session.dictionary().mutex());
  const uint32_t id = session.dictionary().name(text, "overload");
  thread.text_names.insert(key, id);
  return id;
}

// A stack of two calls: a loop, and a function of its own number.
uint32_t stack_of(ThreadState& thread, Session& session, uint64_t number) {
  const CallKey key{&session, reinterpret_cast<const void*>(number + 1), 0};
  if (const KnownCall& known = thread.calls.at(key); known.stack != 0) return known.stack;
  uint32_t stack = 0;
  {
    std::lock_guard lock(session.dictionary().mutex());
    Dictionary& dictionary = session.dictionary();
    const uint32_t outer = dictionary.stack(0, dictionary.frame("loop", "train.py", 1, 1));
    stack = dictionary.stack(outer, dictionary.frame("call " + std::to_string(number), "train.py", 2, 2));
  }
  thread.calls.insert(key, {0, {}, stack, 0});
  return stack;
}

SpanRecord span_of(ThreadState& thread, Session& session, const std::string& name, int64_t sequence,
                   uint64_t stack) {
  SpanRecord span{};
  span.name = name_of(thread, session, name);
  span.stack = stack_of(thread, session, stack);
  span.sequence = sequence;
  span.start_tick = read_tick();
  return span;
}

// What the operator callback does, without torch and Python: a span whose sequence number is in its name.
// Returns whether there was room for it.
bool record(const std::string& text, int64_t sequence, uint64_t stack) {
  ThreadState* thread = this_thread();
  BusyGuard busy(*thread);
  Session* session = Session::current();
  if (session == nullptr || !thread->keep_up(*session)) return false;
  CompactSpan* span = session->next_span(*thread);
  if (span == nullptr) return false;
  SpanRecord whole = span_of(*thread, *session, text, sequence, stack);
  *span = compact(whole, session->site(*thread, site_of(whole)));
  Session::commit_span(*thread);
  std::atomic_ref(span->end).store(CompactSpan::end_of(whole.start_tick, read_tick()),
                                   std::memory_order_relaxed);
  return true;
}

std::string step_name(int64_t step) { return "step " + std::to_string(step); }

struct Checked {
  uint64_t spans = 0, steps = 0, wrong = 0;
  int64_t first_step = INT64_MAX, last_step = -1;
  std::size_t strings = 0;
};

// Whether each span of a recording has the name and the stack that it was written with.
Checked check_names(const std::string& path) {
  const MappedFile bytes(path);
  const Recording recording = parse_recording(bytes.bytes());
  const RecordingDictionary& dictionary = recording.dictionary;
  Checked checked;
  checked.strings = dictionary.strings.size();
  const auto text = [&dictionary](int32_t string) {
    return dictionary.strings[static_cast<std::size_t>(string)];
  };
  for (std::size_t row = 0; row < recording.spans.size(); ++row) {
    ++checked.spans;
    const int64_t step = recording.spans.sequence[row];
    const std::string_view name = text(recording.spans.name[row]);
    const int32_t stack = recording.spans.stack[row];
    const bool has_stack = stack >= 0 && dictionary.stack_parent[stack] >= 0;
    const std::string_view function =
        has_stack ? text(dictionary.frame_function[dictionary.stack_frame[stack]]) : std::string_view{};
    const std::string_view outer =
        has_stack ? text(dictionary.frame_function[dictionary.stack_frame[dictionary.stack_parent[stack]]])
                  : std::string_view{};
    bool right = outer == "loop" && text(recording.spans.overload[row]) == "overload";
    if (step >= 0) {
      ++checked.steps;
      checked.first_step = std::min(checked.first_step, step);
      checked.last_step = std::max(checked.last_step, step);
      right = right && name == step_name(step) && function == "call " + std::to_string(step % 1000);
    } else {
      right = right && name == "operator" + std::to_string(-step) && function == "call 0";
    }
    // A machine that lets neither the helper thread nor a writer collect in time: then the recording says so.
    const bool unknown = name == "(name not recorded)" || stack < 0;
    checked.wrong += !right && !(unknown && recording.losses.limited_dictionary != 0);
  }
  CHECK(recording.losses.damaged_chunks == 0);
  CHECK(recording.losses.damaged_entries == 0);
  CHECK(recording.losses.damaged_records == 0);
  return checked;
}

constexpr uint64_t kRingBytes = 512 * 1024;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int64_t kSteps = 20'000;
const uint64_t kCopies = testing::times(4, 12), kDamaged = testing::times(6, 20);
#else
constexpr int64_t kSteps = 1'000'000;
const uint64_t kCopies = 60, kDamaged = 200;
#endif

void a_ring_keeps_the_names_of_what_it_has() {
  // Without the helper thread, so that it does not depend on when that runs.
  Running running(1, kRingBytes, false);
  uint64_t written = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    written += record(step_name(step), step, static_cast<uint64_t>(step % 1000));
    for (int64_t one = 1; one <= 3; ++one) written += record("operator" + std::to_string(one), -one, 0);
  }
  CHECK(written == 4 * kSteps);
  CHECK(running.header().limited_dictionary == 0);
  CHECK(running.header().dropped_dictionary == 0);
  CHECK(running.header().dictionary_collections > kSteps / 10'000);
  running.stop();
  CHECK(std::filesystem::file_size(running.path()) <= kRingBytes);
  const Checked checked = check_names(running.path());
  CHECK(checked.wrong == 0);
  CHECK(checked.last_step == kSteps - 1);
  // None in between is missing.
  CHECK(static_cast<int64_t>(checked.steps) == checked.last_step - checked.first_step + 1);
  CHECK(checked.steps > 500);
  // What it does not need is not there: two texts for each step, and a few for the rest.
  CHECK(checked.strings < 3 * checked.steps + 2100);
}

// What is true of a copy and of a part is true of the ring.
void check_copies(const std::string& path, uint64_t& spans, uint64_t& wrong) {
  const std::string copy = path + "-copy", part = path + "-part";
  clone_recording(path, copy);
  const Checked cloned = check_names(copy);
  {
    const MappedFile bytes(copy);
    cut_recording(bytes.bytes(), 0, part, std::nullopt);
  }
  const Checked was_cut = check_names(part);
  CHECK(was_cut.spans == cloned.spans);
  unlink(copy.c_str());
  unlink(part.c_str());
  const Checked live_ring = check_names(path);
  spans += cloned.spans + was_cut.spans + live_ring.spans;
  wrong += cloned.wrong + was_cut.wrong + live_ring.wrong;
}

void copies_of_a_ring_have_all_names_while_it_goes_on() {
  Running running(2, kRingBytes);
  std::atomic<bool> going{true};
  std::atomic<int64_t> next{0};
  std::vector<std::thread> writers;
  for (int number = 0; number < 3; ++number) {
    writers.emplace_back([&] {
      while (going.load(std::memory_order_relaxed)) {
        const int64_t step = next.fetch_add(1, std::memory_order_relaxed);
        record(step_name(step), step, static_cast<uint64_t>(step % 1000));
        for (int64_t one = 1; one <= 9; ++one) record("operator" + std::to_string(one), -one, 0);
      }
    });
  }
  while (std::atomic_ref(running.header().recycled_spans).load() == 0) sched_yield();
  uint64_t spans = 0, wrong = 0;
  for (uint64_t copy = 0; copy < kCopies; ++copy) check_copies(running.path(), spans, wrong);
  going.store(false);
  for (std::thread& writer : writers) writer.join();
  CHECK(std::atomic_ref(running.header().dictionary_collections).load() > 1);
  CHECK(wrong == 0);
  CHECK(spans > 1000);
  running.stop();
  CHECK(check_names(running.path()).wrong == 0);
}

// A thread that has a name in hand when the collection begins writes it down afterwards.
void a_thread_in_its_callback_is_waited_for() {
  Running running(3, kRingBytes, false);
  Session& session = running.session();
  record("operator1", -1, 0);
  std::atomic<int> turn{0};
  std::thread late([&] {
    ThreadState* thread = this_thread();
    BusyGuard busy(*thread);
    CHECK(thread->keep_up(session));
    CompactSpan* span = session.next_span(*thread);
    SpanRecord whole = span_of(*thread, session, "operator7", -7, 0);
    const uint32_t site = session.site(*thread, site_of(whole));
    turn.store(1);
    while (turn.load() != 2) sched_yield();
    whole.start_tick = whole.end_tick = read_tick();
    *span = compact(whole, site);
    Session::commit_span(*thread);
  });
  while (turn.load() != 1) sched_yield();
  int64_t step = 0;
  while (!session.dictionary().asks_for_collection()) {
    record(step_name(step), step, static_cast<uint64_t>(step % 1000));
    ++step;
  }
  CHECK(!collect_dictionary(session, 1'000'000));
  CHECK(session.dictionary().has_last_epoch());
  CHECK(running.header().dictionary_collections == 0);
  turn.store(2);
  late.join();
  CHECK(collect_dictionary(session, kPatienceNs));
  CHECK(running.header().dictionary_collections == 1);
  // Names of the epoch before are new ones to this thread.
  record("operator1", -1, 0);
  running.stop();
  const Checked checked = check_names(running.path());
  CHECK(checked.wrong == 0);
  CHECK(static_cast<int64_t>(checked.spans) == step + 3);
}

void what_lasts_is_kept_with_its_last_value() {
  Running running(4, kRingBytes, false);
  Session& session = running.session();
  Dictionary& dictionary = session.dictionary();
  uint32_t module = 0;
  {
    std::lock_guard lock(dictionary.mutex());
    module = dictionary.new_module("Linear", 0, 0x1000);
    dictionary.name_module(module, 0, "first");
    for (int value = 0; value <= 50; ++value) dictionary.info("key", std::to_string(value));
    dictionary.info("other", "\"text\"");
    for (int number = 0; number <= 3; ++number) {
      const std::string session_key = "kinetoscope.session." + std::to_string(number);
      dictionary.info(session_key, "[]");
      dictionary.info(session_key + ".key", "1");
    }
    session.forget_sessions_before(2);
  }
  for (int64_t round = 1, step = 0; round <= 5; ++round) {
    while (!dictionary.asks_for_collection()) {
      record(step_name(step), step, static_cast<uint64_t>(step % 1000));
      ++step;
    }
    if (round == 5) {
      // The first record of a new chunk, so that the one before is older than that of the other thread, which
      // stays.
      record("operator1", -1, 0);
      std::thread([] { record("operator2", -2, 0); }).join();
    }
    CHECK(collect_dictionary(session, kPatienceNs));
    std::lock_guard lock(dictionary.mutex());
    dictionary.name_module(module, 0, "name " + std::to_string(round));
    dictionary.info("key", std::to_string(100 * round));
  }
  running.stop();
  const MappedFile bytes(running.path());
  const Recording recording = parse_recording(bytes.bytes());
  const RecordingDictionary& tables = recording.dictionary;
  CHECK(tables.module_class.size() == 1);
  CHECK(tables.strings[static_cast<std::size_t>(tables.module_class[0])] == "Linear");
  CHECK(tables.strings[static_cast<std::size_t>(tables.module_name[0])] == "name 5");
  std::map<std::string_view, std::string_view> info(tables.info.begin(), tables.info.end());
  // Those of the first session and of the ones that are needed.
  CHECK(info.size() == 2 + 6);
  CHECK(!info.contains("kinetoscope.session.1") && !info.contains("kinetoscope.session.1.key"));
  CHECK(info.contains("kinetoscope.session.2") && info.contains("kinetoscope.session.3.key"));
  CHECK(info["key"] == "500");
  CHECK(info["other"] == "\"text\"");
  CHECK(tables.threads.size() == 2);
}

// Sessions that overlap without end free what none of them needs; without a ring, too.
void what_was_freed_is_collected() {
  Running running(5, 0, false);
  Session& session = running.session();
  Dictionary& dictionary = session.dictionary();
  int64_t step = 0;
  const auto write_steps = [&step](int64_t count) {
    for (int64_t end = step + count; step < end; ++step)
      record(step_name(step), step, static_cast<uint64_t>(step % 1000));
  };
  write_steps(50'000);
  CHECK(!dictionary.asks_for_collection());
  uint64_t last_size = 0;
  const int rounds = static_cast<int>(testing::times(4, 10));
  for (int round = 0; round < rounds; ++round) {
    // What is finished gets its checksum, as by the helper thread: only that can be freed.
    session.file().prepare_space();
    session.file().free_before(read_tick());
    write_steps(50'000);
    if (dictionary.asks_for_collection()) CHECK(collect_dictionary(session, kPatienceNs));
    if (round == rounds / 2 - 1) last_size = running.header().chunks;
  }
  CHECK(running.header().dictionary_collections >= static_cast<uint64_t>(rounds / 2));
  CHECK(running.header().chunks < last_size * 2);
  running.stop();
  const Checked checked = check_names(running.path());
  CHECK(checked.wrong == 0);
  CHECK(checked.last_step == step - 1);
}

void nothing_is_freed_while_a_ring_is_frozen() {
  Running running(6, kRingBytes, false);
  Session& session = running.session();
  int64_t step = 0;
  while (!session.dictionary().asks_for_collection()) {
    record(step_name(step), step, static_cast<uint64_t>(step % 1000));
    ++step;
  }
  session.file().freeze();
  CHECK(!collect_dictionary(session, kPatienceNs));
  CHECK(running.header().dictionary_collections == 0);
  session.file().thaw();
  CHECK(collect_dictionary(session, kPatienceNs));
  CHECK(running.header().dictionary_collections == 1);
  running.stop();
  CHECK(check_names(running.path()).wrong == 0);
}

// Whatever is changed in a recording whose dictionary was collected: it is read without harm, or refused.
void damaged_ones_are_read_without_harm() {
  Running running(7, kRingBytes, false);
  Session& session = running.session();
  for (int64_t step = 0; running.header().dictionary_collections < 2; ++step) {
    record(step_name(step), step, static_cast<uint64_t>(step % 1000));
    if (session.dictionary().asks_for_collection()) CHECK(collect_dictionary(session, kPatienceNs));
  }
  running.stop();
  const std::string damaged = running.path() + "-damaged", part = running.path() + "-part";
  std::minstd_rand random(1);
  std::vector<char> bytes(std::filesystem::file_size(running.path()));
  std::ifstream(running.path(), std::ios::binary)
      .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  // Without checksums, or nothing that was changed would be read.
  FileHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  header.checksum = 0;
  std::memcpy(bytes.data(), &header, sizeof(header));
  int refused = 0;
  for (uint64_t trial = 0; trial < kDamaged; ++trial) {
    std::vector<char> changed = bytes;
    for (int change = 0; change < 40; ++change) {
      const std::size_t at = kHeaderBytes + random() % (changed.size() - kHeaderBytes);
      changed[at] = static_cast<char>(random() % 3 == 0 ? 0xff : random());
    }
    std::ofstream(damaged, std::ios::binary)
        .write(changed.data(), static_cast<std::streamsize>(changed.size()));
    const MappedFile file(damaged);
    try {
      CHECK(parse_recording(file.bytes()).spans.size() <= bytes.size() / sizeof(CompactSpan));
      cut_recording(file.bytes(), 0, part, std::nullopt);
    } catch (const RefusedRecording&) {
      ++refused;
    }
    unlink(part.c_str());
  }
  unlink(damaged.c_str());
  // The header is whole.
  CHECK(refused == 0);
}

}  // namespace

int main() {
  active_clock = choose_clock();
  prepare_quiescence();
  CHECK(maintenance_thread::ensure_running());
  a_thread_in_its_callback_is_waited_for();
  what_lasts_is_kept_with_its_last_value();
  nothing_is_freed_while_a_ring_is_frozen();
  damaged_ones_are_read_without_harm();
  copies_of_a_ring_have_all_names_while_it_goes_on();
  if (!testing::kLooksForRaces) {
    what_was_freed_is_collected();
    a_ring_keeps_the_names_of_what_it_has();
  }
  return testing::checks_failed();
}
