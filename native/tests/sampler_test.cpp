// The sampler reads an interpreter that this test makes up, and that changes, goes away and lies while it is
// read.
#include "recorder/sampler.h"

#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/recording/mapped_file.h"
#include "core/recording/reader.h"
#include "recorder/clock.h"
#include "recorder/interpreter_view.h"
#include "recorder/maintenance_thread.h"
#include "recorder/memory_reader.h"
#include "recorder/session.h"
#include "recorder/torch_threads.h"

namespace {

struct Object {
  int64_t references = 1;
  const void* type = nullptr;
  int64_t size = 0;
};

struct Text {
  Object object;
  char characters[64];
};

struct Bytes {
  Object object;
  char data[64];
};

constexpr int kInstructions = 16;

struct Code {
  Object object;
  const Text* function;
  const Text* file;
  const Bytes* lines;
  int32_t first_line;
  uint16_t instructions[kInstructions];
};

struct Frame {
  const Frame* previous = nullptr;
  const Code* code = nullptr;
  const uint16_t* instruction = nullptr;
  const void* first_local = nullptr;
  uint8_t owner = 0;
};

struct ThreadOfPython {
  ThreadOfPython* next = nullptr;
  const void* interpreter = nullptr;
  uint64_t number = 0;
  unsigned long system = 0;
  std::atomic<const Frame*> frame{nullptr};
};

struct Gil {
  const void* holder = nullptr;
  int32_t locked = 0;
  std::atomic<uint32_t> waited_on{0};
};

struct Interpreter {
  ThreadOfPython* newest = nullptr;
  Gil gil;
};

const char code_type = 0, text_type = 0, bytes_type = 0;

}  // namespace

const kinetoscope_frame_layout kinetoscope_layout = {
    .python_hex = 0,
    .thread_frame = offsetof(ThreadOfPython, frame),
    .with_cframe = 0,
    .cframe_current = 0,
    .previous = offsetof(Frame, previous),
    .code = offsetof(Frame, code),
    .instruction = offsetof(Frame, instruction),
    .owner = offsetof(Frame, owner),
    .first_local = offsetof(Frame, first_local),
    .code_first_instruction = offsetof(Code, instructions),
    .code_function = offsetof(Code, function),
    .code_file = offsetof(Code, file),
    .code_first_line = offsetof(Code, first_line),
    .code_lines = offsetof(Code, lines),
    .object_type = offsetof(Object, type),
    .object_size = offsetof(Object, size),
    .bytes_data = offsetof(Bytes, data),
    .text_bytes = sizeof(Object),
    .newest_thread = offsetof(Interpreter, newest),
    .thread_next = offsetof(ThreadOfPython, next),
    .thread_interpreter = offsetof(ThreadOfPython, interpreter),
    .thread_number = offsetof(ThreadOfPython, number),
    .thread_system = offsetof(ThreadOfPython, system),
    .gil_holder = offsetof(Gil, holder),
    .gil_locked = offsetof(Gil, locked),
    .gil_bytes = sizeof(Gil),
    .pointer_mask = ~uintptr_t{0},
};

kinetoscope_text kinetoscope_text_of(const void* header) {
  Object object;
  std::memcpy(&object, header, sizeof(object));
  return {static_cast<size_t>(object.size), 1, offsetof(Text, characters)};
}

namespace kinetoscope {

uint64_t torch_thread_id() { return 1; }

}  // namespace kinetoscope

using namespace kinetoscope;

namespace {

uint32_t own_id() { return static_cast<uint32_t>(syscall(SYS_gettid)); }

// Objects live to the end: a sampler may look at them at any time.
template <typename Kind>
Kind* kept(Kind* object) {
  static std::vector<std::shared_ptr<void>> all;
  all.emplace_back(std::shared_ptr<Kind>(object));
  return object;
}

Text* new_text(const char* characters) {
  auto* text = kept(new Text{{1, &text_type, static_cast<int64_t>(std::strlen(characters))}, {}});
  std::memcpy(text->characters, characters, std::strlen(characters));
  return text;
}

// Code of `kInstructions` instructions, each on the line after the one before.
Code* new_code(const char* function, int32_t first_line, const char* file = "program.py") {
  auto* lines = kept(new Bytes{{1, &bytes_type, 2 * kInstructions}, {}});
  for (int at = 0; at < kInstructions; ++at) {
    // One instruction; its line differs by 0 for the first, and by 1 for the others.
    lines->data[2 * at] = static_cast<char>(0x80 | ((at == 0 ? 10 : 11) << 3));
    lines->data[2 * at + 1] = 0;
  }
  return kept(
      new Code{{1, &code_type, kInstructions}, new_text(function), new_text(file), lines, first_line, {}});
}

// An interpreter with one thread, this one.
struct World {
  Interpreter interpreter;
  ThreadOfPython main;

  World() {
    main.interpreter = &interpreter;
    main.number = 1;
    main.system = own_id();
    interpreter.newest = &main;
    interpreter.gil.holder = &main;
    interpreter.gil.locked = 1;
  }

  kinetoscope_interpreter here() const {
    return {&interpreter, &interpreter.gil, &code_type, &text_type, &bytes_type, &main, &main, 0, 0, 0};
  }
};

void read_what_is_there_and_nothing_else() {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (const auto way : {MemoryReader::Way::OtherProcess, MemoryReader::Way::MemoryFile}) {
    MemoryReader memory(way);
    if (memory.way() != way) {
      std::fprintf(stderr, "not tested: this system forbids one way of reading\n");
      continue;
    }
    auto* pages = static_cast<std::byte*>(
        mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    uint64_t seen = 0;
    const uint64_t written = 0x1234567812345678;
    // Across the border of two pages.
    std::memcpy(pages + page - 4, &written, sizeof(written));
    CHECK(memory.read(pages + page - 4, seen) && seen == written);
    std::vector<std::byte> all(3 * page);
    CHECK(memory.read(pages, all.data(), all.size()));
    // What was read is remembered until it is forgotten, or refreshed.
    std::memset(pages, 7, 3 * page);
    CHECK(memory.read(pages + page - 4, seen) && seen == written);
    memory.refresh();
    CHECK(memory.read(pages + page - 4, seen) && seen == 0x0707070707070707);
    munmap(pages + page, 2 * page);
    CHECK(memory.read(pages + page, seen));
    memory.refresh();
    CHECK(memory.read(pages, seen) && seen == 0x0707070707070707);
    CHECK(!memory.read(pages + page, seen));
    CHECK(!memory.read(pages + page - 4, seen));
    memory.forget();
    CHECK(!memory.read(pages + page - 4, seen));
    CHECK(memory.read(pages + page - 8, seen));
    CHECK(!memory.read(nullptr, seen));
    CHECK(!memory.read(reinterpret_cast<const void*>(UINTPTR_MAX - 3), seen));
    munmap(pages, page);
    memory.close();
    CHECK(!memory.read(&written, seen));
  }
  MemoryReader none(MemoryReader::Way::None);
  uint64_t seen = 0;
  CHECK(none.way() == MemoryReader::Way::None);
  CHECK(!none.read(&seen, seen));
}

void find_lines() {
  const auto table = [](std::initializer_list<int> bytes) { return std::string(bytes.begin(), bytes.end()); };
  // Two instructions on the first line; one 2 lines down; one without a line; one 70 lines down, and one that
  // many lines up again, with columns.
  const std::string lines =
      table({0x80 | 0 << 3 | 1, 5, 0x80 | 12 << 3, 1, 2, 0x80 | 15 << 3, 0x80 | 13 << 3, 0x40 | (140 & 63),
             140 >> 6, 0x80 | 14 << 3, 0x40 | (141 & 63), 141 >> 6, 0, 1, 1});
  const uint32_t expected[] = {10, 10, 12, 0, 82, 12};
  for (int at = 0; at < 6; ++at) CHECK(line_at(lines, 10, 2 * at) == expected[at]);
  CHECK(line_at(lines, 10, -2) == 10);
  CHECK(line_at(lines, 10, 12) == 0);
  CHECK(line_at("", 10, 0) == 0);
  CHECK(line_at(table({0x80 | 13 << 3}), 10, 0) == 10);
}

void see_threads_and_frames() {
  World world;
  InterpreterView view(world.here());
  CHECK(view.problem().empty());
  std::vector<PythonThread> threads;
  std::vector<SeenFrame> frames;
  SeenCode seen;
  // A thread that has no id of the system yet has not run.
  ThreadOfPython unborn;
  unborn.interpreter = &world.interpreter;
  unborn.number = 2;
  unborn.next = &world.main;
  world.interpreter.newest = &unborn;
  view.memory().forget();
  CHECK(view.threads(threads) && threads.size() == 1);
  CHECK(threads[0].number == 1 && threads[0].system == own_id());
  CHECK(view.frames(threads[0], 10, frames) && frames.empty());

  const Code* outer = new_code("outer", 100);
  const Code* inner = new_code("inner", 200);
  Frame c_frame, first, middle, last;
  first = {nullptr, outer, outer->instructions + 3, nullptr, 0};
  c_frame = {&first, nullptr, nullptr, nullptr, KINETOSCOPE_FIRST_C_OWNER};
  middle = {&c_frame, inner, inner->instructions - 1, &first, 1};
  last = {&middle, inner, inner->instructions + 15, nullptr, 0};
  world.main.frame = &last;
  view.memory().forget();
  CHECK(view.frames(threads[0], 10, frames) && frames.size() == 3);
  CHECK(frames[1].first_local == &first);
  CHECK(view.code(frames[0], seen) && seen.function == "inner" && seen.file == "program.py");
  CHECK(seen.line == 215 && seen.first_line == 200);
  CHECK(view.code(frames[1], seen) && seen.line == 200);
  CHECK(view.code(frames[2], seen) && seen.function == "outer" && seen.line == 103);
  CHECK(view.frames(threads[0], 2, frames) && frames.size() == 2);
  // What has no line counts with the line of the function.
  const Code* start = new_code("start", 300);
  const_cast<Bytes*>(start->lines)->data[0] = static_cast<char>(0x80 | (15 << 3));
  last = {&middle, start, start->instructions, nullptr, 0};
  view.memory().forget();
  CHECK(view.frames(threads[0], 10, frames) && view.code(frames[0], seen) && seen.line == 300);
  last = {&middle, inner, inner->instructions + 15, nullptr, 0};
  view.memory().forget();

  const auto refused = [&] {
    view.memory().forget();
    return !view.frames(threads[0], 10, frames);
  };
  const auto no_code = [&](const void* code, const void* instruction) {
    view.memory().forget();
    return !view.code({code, instruction, nullptr}, seen);
  };
  // An instruction of another code object, and what is none.
  CHECK(no_code(outer, inner->instructions));
  CHECK(no_code(outer, outer->instructions + kInstructions));
  CHECK(no_code(outer, outer->instructions - 2));
  CHECK(no_code(&first, &first));
  CHECK(no_code(nullptr, nullptr));
  CHECK(no_code(reinterpret_cast<const void*>(8), reinterpret_cast<const void*>(8)));
  Code* without_names = new_code("", 0);
  without_names->function = nullptr;
  without_names->lines = nullptr;
  CHECK(!no_code(without_names, without_names->instructions) && seen.function.empty() && seen.line == 0);
  // Cut off at a generator that has just yielded.
  middle.previous = nullptr;
  CHECK(refused());
  middle.previous = &c_frame;
  CHECK(!refused());
  first.owner = 200;
  CHECK(refused());
  first.owner = 0;
  c_frame.previous = reinterpret_cast<const Frame*>(16);
  CHECK(refused());
  // A circle of C frames ends.
  c_frame.previous = &c_frame;
  CHECK(refused());
  c_frame.previous = &first;
  // The state is another thread's now.
  world.main.number = 9;
  CHECK(refused());
  world.main.number = 1;

  world.main.interpreter = nullptr;
  view.memory().forget();
  CHECK(!view.threads(threads));
  CHECK(!view.problem().empty());
  world.main.interpreter = &world.interpreter;
  world.main.next = reinterpret_cast<ThreadOfPython*>(24);
  view.memory().forget();
  CHECK(!view.threads(threads));
  world.main.next = nullptr;
  world.interpreter.gil.locked = 0;
  CHECK(!view.problem().empty());
  CHECK(!view.gil_is_elsewhere({&world.main, 1, 1}));
  world.interpreter.gil.locked = 1;
  CHECK(!view.gil_is_elsewhere({&world.main, 1, 1}));
  CHECK(view.gil_is_elsewhere({&unborn, 1, 1}));
}

struct Running {
  explicit Running(uint64_t ring_bytes = 0) {
    static uint32_t generations = 0;
    path = (std::filesystem::temp_directory_path() / ("kinetoscope-sampler-" + std::to_string(getpid())))
               .string();
    file = std::make_shared<RecordingFile>(path, ring_bytes);
    session = std::make_unique<Session>(file, ++generations, 0);
    file->add_clock_pair(read_clock_pair());
    file->header().start_tick = read_tick();
    file->publish(0);
    Session::set_current(session.get());
  }
  ~Running() {
    if (session != nullptr) close();
    std::filesystem::remove(path);
  }

  void close() {
    Session::set_current(nullptr);
    file->header().stop_tick = read_tick();
    file->mark_stopped();
    session.reset();
    file.reset();
  }

  std::string path;
  std::shared_ptr<RecordingFile> file;
  std::unique_ptr<Session> session;
};

// The innermost function and line of each sample, and how many frames there are, as "function:line/frames".
std::vector<std::string> shown(const Recording& recording) {
  std::vector<std::string> found;
  const RecordingDictionary& tables = recording.dictionary;
  for (size_t row = 0; row < recording.samples.time_ns.size(); ++row) {
    const int32_t stack = recording.samples.stack[row];
    if (stack < 0) {
      found.emplace_back("none");
      continue;
    }
    const auto frame = static_cast<size_t>(tables.stack_frame[static_cast<size_t>(stack)]);
    int frames = 0;
    for (int32_t at = stack; at >= 0; at = tables.stack_parent[static_cast<size_t>(at)]) ++frames;
    found.push_back(std::string(tables.strings[static_cast<size_t>(tables.frame_function[frame])]) + ":" +
                    std::to_string(tables.frame_line[frame]) + "/" + std::to_string(frames));
  }
  return found;
}

const std::atomic<bool> kStay{false};

void write_samples_of_each_thread() {
  World world;
  const Code* outer = new_code("outer", 100);
  const Code* inner = new_code("inner", 200);
  Frame first{nullptr, outer, outer->instructions + 3, nullptr, 0};
  Frame last{&first, inner, inner->instructions + 4, nullptr, 0};
  world.main.frame = &first;

  // A thread that waits for the GIL, one that waits for something else, and one that runs.
  std::atomic<uint32_t> elsewhere{0};
  std::atomic<uint32_t> ids[3] = {0, 0, 0};
  std::atomic<bool> done{false};
  const auto wait_on = [&](std::atomic<uint32_t>& word, std::atomic<uint32_t>& id) {
    id = own_id();
    while (!done) syscall(SYS_futex, &word, FUTEX_WAIT, 0, nullptr, nullptr, 0);
  };
  std::thread waiters[] = {std::thread(wait_on, std::ref(world.interpreter.gil.waited_on), std::ref(ids[0])),
                           std::thread(wait_on, std::ref(elsewhere), std::ref(ids[1])), std::thread([&] {
                             ids[2] = own_id();
                             while (!done) {
                             }
                           })};
  ThreadOfPython others[3];
  for (int at = 0; at < 3; ++at) {
    while (ids[at] == 0) std::this_thread::yield();
    others[at].interpreter = &world.interpreter;
    others[at].number = static_cast<uint64_t>(10 + at);
    others[at].system = ids[at];
    others[at].frame = &last;
  }
  others[0].next = &world.main;
  others[1].next = &others[0];
  others[2].next = &others[1];

  Running running;
  std::string path = running.path;
  // This thread ran an operator first, and has one row.
  const uint32_t own = running.session->register_thread();
  {
    Sampler sampler(*running.session, world.here(), nullptr);
    sampler.round(kStay);
    world.main.frame = &last;
    sampler.round(kStay);
    sampler.skip_round();
    sampler.round(kStay);
    world.interpreter.newest = &others[2];
    // Until both wait; each reads as running before that.
    for (bool both = false; !both;) {
      sampler.round(kStay);
      char text[64] = {};
      both = true;
      for (const auto& id : {ids[0].load(), ids[1].load()}) {
        FILE* file = std::fopen(("/proc/self/task/" + std::to_string(id) + "/syscall").c_str(), "re");
        if (file == nullptr) break;
        both &= std::fgets(text, sizeof(text), file) != nullptr && std::strncmp(text, "running", 7) != 0;
        std::fclose(file);
      }
    }
    sampler.round(kStay);
    world.interpreter.newest = nullptr;
    sampler.round(kStay);
  }
  CHECK(running.session->index_of_thread(own_id()) != own);  // its end was seen
  running.close();
  done = true;
  for (std::atomic<uint32_t>* word : {&world.interpreter.gil.waited_on, &elsewhere}) {
    *word = 1;
    syscall(SYS_futex, word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }
  for (std::thread& waiter : waiters) waiter.join();

  const MappedFile file(path);
  const Recording recording = parse_recording(file.bytes());
  const SampleColumns& samples = recording.samples;
  const std::vector<std::string> places = shown(recording);
  const size_t rows = places.size();
  CHECK(rows >= 6);
  CHECK(places[0] == "outer:103/1" && places[1] == "inner:204/2" && places[2] == "inner:204/2");
  CHECK(samples.period_ns[1] == samples.time_ns[1] - samples.time_ns[0]);
  CHECK(samples.period_ns[2] < samples.time_ns[2] - samples.time_ns[1]);
  CHECK(recording.losses.torn_samples == 0 && recording.losses.damaged_records == 0);
  const auto last_of = [&](uint32_t id) {
    for (size_t row = rows; row-- > 0;) {
      const auto thread =
          recording.dictionary.threads.at(recording.thread_index[static_cast<size_t>(samples.thread[row])]);
      if (thread.os_tid == id) return row;
    }
    return rows;
  };
  const auto state_of = [&](uint32_t id) {
    const size_t row = last_of(id);
    return row < rows ? static_cast<SampleState>(samples.state[row]) : SampleState::Unknown;
  };
  const auto wait_of = [&](uint32_t id) { return static_cast<SampleWait>(samples.wait[last_of(id)]); };
  if (state_of(ids[2]) != SampleState::Unknown) {
    CHECK(state_of(ids[2]) == SampleState::Running);
    CHECK(state_of(ids[0]) == SampleState::WaitingForGil);
    CHECK(state_of(ids[1]) == SampleState::Blocked);
    CHECK(wait_of(ids[1]) == SampleWait::Lock && wait_of(ids[2]) == SampleWait::Unknown);
  } else {
    std::fprintf(stderr, "not tested: this system does not say what a thread does\n");
  }
}

// Whether a thread is off its processor, in a system call.
bool is_waiting(uint32_t id) {
  char text[64] = {};
  FILE* file = std::fopen(("/proc/self/task/" + std::to_string(id) + "/syscall").c_str(), "re");
  if (file == nullptr) return false;
  const bool read = std::fgets(text, sizeof(text), file) != nullptr;
  std::fclose(file);
  return read && std::strncmp(text, "running", 7) != 0;
}

// What a blocked thread waits for, by the system call that it is in and the files that this is given.
void say_what_a_thread_waits_for() {
  if (FILE* file = std::fopen("/proc/thread-self/syscall", "re"); file != nullptr) {
    std::fclose(file);
  } else {
    std::fprintf(stderr, "not tested: this system does not say what a thread does\n");
    return;
  }
  int pipes[2], sockets[2];
  CHECK(pipe(pipes) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
  char byte;
  const auto is_readable = [](std::initializer_list<int> files) {
    std::vector<pollfd> polled;
    for (const int file : files) polled.push_back({file, POLLIN, 0});
    poll(polled.data(), polled.size(), -1);
  };
  const auto select_of = [](int file) {
    fd_set files;
    FD_ZERO(&files);
    FD_SET(file, &files);
    select(file + 1, &files, nullptr, nullptr, nullptr);
  };
  const auto child = [&] {
    const pid_t process = fork();
    if (process == 0) {
      char end;
      _exit(read(pipes[0], &end, 1) == 1 ? 0 : 1);
    }
    waitpid(process, nullptr, 0);
  };
  struct Case {
    SampleWait wait;
    std::function<void()> act;
    int end;  // what is written to so that it ends; -1: by a signal
  };
  const Case cases[] = {
      {SampleWait::Pipe, [&] { CHECK(read(pipes[0], &byte, 1) == 1); }, pipes[1]},
      {SampleWait::Socket, [&] { CHECK(recv(sockets[0], &byte, 1, 0) == 1); }, sockets[1]},
      {SampleWait::Socket, [&] { CHECK(read(sockets[0], &byte, 1) == 1); }, sockets[1]},
      {SampleWait::Pipe,
       [&] {
         is_readable({pipes[0]});
         CHECK(read(pipes[0], &byte, 1) == 1);
       },
       pipes[1]},
      {SampleWait::Events,
       [&] {
         is_readable({pipes[0], sockets[0]});
         CHECK(read(pipes[0], &byte, 1) == 1);
       },
       pipes[1]},
      {SampleWait::Socket,
       [&] {
         select_of(sockets[0]);
         CHECK(read(sockets[0], &byte, 1) == 1);
       },
       sockets[1]},
      {SampleWait::Process, child, pipes[1]},
      {SampleWait::Sleep, [&] { sleep(3600); }, -1},
  };
  struct sigaction nothing{};
  nothing.sa_handler = [](int) {};
  sigaction(SIGUSR1, &nothing, nullptr);
  World world;
  const Code* code = new_code("work", 100);
  Frame frame{nullptr, code, code->instructions, nullptr, 0};
  Running running;
  std::string path = running.path;
  std::vector<uint32_t> ids;
  {
    Sampler sampler(*running.session, world.here(), nullptr);
    for (const Case& one : cases) {
      std::atomic<uint32_t> id{0};
      std::thread waiter([&] {
        id = own_id();
        one.act();
      });
      while (id == 0 || !is_waiting(id)) std::this_thread::yield();
      // It may have waited for something else on its way there.
      ThreadOfPython other;
      other.interpreter = &world.interpreter;
      other.number = 100 + ids.size();
      other.system = id;
      other.frame = &frame;
      other.next = &world.main;
      world.interpreter.newest = &other;
      const auto in_its_call = [&] {
        char text[64] = {};
        FILE* file = std::fopen(("/proc/self/task/" + std::to_string(id) + "/syscall").c_str(), "re");
        const bool there = file != nullptr && std::fgets(text, sizeof(text), file) != nullptr;
        if (file != nullptr) std::fclose(file);
        return there && std::strtol(text, nullptr, 10) != SYS_futex && std::strncmp(text, "running", 7) != 0;
      };
      while (!in_its_call()) std::this_thread::yield();
      sampler.round(kStay);
      ids.push_back(id);
      if (one.end >= 0)
        CHECK(write(one.end, "1", 1) == 1);
      else
        pthread_kill(waiter.native_handle(), SIGUSR1);
      waiter.join();
      world.interpreter.newest = &world.main;
    }
  }
  running.close();
  for (const int file : {pipes[0], pipes[1], sockets[0], sockets[1]}) close(file);
  const MappedFile file(path);
  const Recording recording = parse_recording(file.bytes());
  size_t seen = 0;
  for (size_t row = 0; row < recording.samples.wait.size(); ++row) {
    if (recording.samples.state[row] != static_cast<uint8_t>(SampleState::Blocked)) continue;
    CHECK(seen < std::size(cases));
    CHECK(recording.samples.wait[row] == static_cast<uint8_t>(cases[seen].wait));
    ++seen;
  }
  CHECK(seen == std::size(cases));
}

// The frames of a thread that had no processor since the rounds before are not looked at again.
void leave_alone_a_thread_that_rests() {
  for (const char* name : {"schedstat", "syscall"}) {
    char text[64];
    FILE* file = std::fopen(("/proc/thread-self/" + std::string(name)).c_str(), "re");
    const bool there = file != nullptr && std::fgets(text, sizeof(text), file) != nullptr;
    if (file != nullptr) std::fclose(file);
    if (there) continue;
    std::fprintf(stderr, "not tested: this system does not say how long a thread ran, or what it does\n");
    return;
  }
  World world;
  const Code* code = new_code("work", 100);
  Frame frames[3];
  for (int at = 0; at < 3; ++at) frames[at] = {nullptr, code, code->instructions + at, nullptr, 0};
  std::atomic<uint32_t> turn{0}, id{0};
  std::thread waiter([&] {
    id = own_id();
    for (uint32_t seen = 0; seen < 2;) {
      syscall(SYS_futex, &turn, FUTEX_WAIT, seen, nullptr, nullptr, 0);
      seen = turn;
    }
  });
  while (id == 0) std::this_thread::yield();
  ThreadOfPython other;
  other.interpreter = &world.interpreter;
  other.number = 10;
  other.system = id;
  other.next = &world.main;
  world.interpreter.newest = &other;
  Running running;
  {
    Sampler sampler(*running.session, world.here(), nullptr);
    for (uint32_t part = 0; part < 2; ++part) {
      other.frame = &frames[part];
      while (!is_waiting(id)) std::this_thread::yield();
      // Off its processor; still there; looked at no more.
      for (int round = 0; round < 3; ++round) sampler.round(kStay);
      other.frame = &frames[2];
      for (int round = 0; round < 2; ++round) sampler.round(kStay);
      other.frame = &frames[part + 1];
      turn = part + 1;
      syscall(SYS_futex, &turn, FUTEX_WAKE, 1, nullptr, nullptr, 0);
      if (part == 1) waiter.join();
    }
    world.interpreter.newest = &world.main;
    sampler.round(kStay);
  }
  std::string path = running.path;
  running.close();
  const MappedFile file(path);
  CHECK(shown(parse_recording(file.bytes())) ==
        std::vector<std::string>({"work:100/1", "work:100/1", "work:100/1", "work:100/1", "work:100/1",
                                  "work:101/1", "work:101/1", "work:101/1", "work:101/1", "work:101/1"}));
}

// Inside an operator a main thread is where the operator was called, unless it runs another frame.
void take_the_place_of_an_open_operator() {
  World world;
  const Code* code = new_code("work", 100);
  Frame calling{nullptr, code, code->instructions, nullptr, 0};
  Frame called{&calling, code, code->instructions + 9, nullptr, 0};
  world.main.frame = &calling;
  ThreadState& thread = *this_thread();
  thread.main_python = &world.main;
  Running running;
  thread.keep_up(*running.session);
  std::vector<uint32_t> stacks;
  {
    Dictionary& dictionary = running.session->dictionary();
    std::lock_guard lock(dictionary.mutex());
    const uint32_t file = dictionary.frame("operator", "program.py", 7, 1);
    for (uint32_t parent : {0u, 1u}) stacks.push_back(dictionary.stack(parent, file));
  }
  const auto begin = [&](const Frame* frame, uint32_t stack) {
    OpenSpan& span = thread.open.push(frame);
    span.frame = frame;
    span.stack = stack;
    return &span;
  };
  {
    Sampler sampler(*running.session, world.here(), nullptr);
    const auto sample = [&] { sampler.round(kStay); };
    sample();  // none
    begin(&calling, stacks[0]);
    sample();  // a range, in which Python goes on
    thread.hold_frame();
    sample();  // an operator
    begin(&calling, stacks[0]);
    thread.hold_frame();
    thread.pop_span();
    sample();  // after another one inside it
    world.main.frame = &called;
    sample();  // which runs Python
    begin(&called, stacks[1]);
    thread.hold_frame();
    sample();  // and from there an operator
    thread.pop_span();
    sample();
    world.main.frame = &calling;
    sample();
    thread.pop_span();
    sample();  // none
    begin(&calling, stacks[1]);
    thread.hold_frame();
    thread.held.reset(running.session->generation() + 1);
    sample();  // of another session
    thread.open.clear();
  }
  thread.main_python = nullptr;
  std::string path = running.path;
  running.close();
  const MappedFile file(path);
  CHECK(shown(parse_recording(file.bytes())) ==
        std::vector<std::string>({"work:100/1", "work:100/1", "operator:7/1", "operator:7/1", "work:109/2",
                                  "operator:7/2", "work:109/2", "operator:7/1", "work:100/1", "work:100/1"}));
}

// What the sampler sees is of one operator, however fast they take turns: that of any moment while it looks.
void never_mix_two_operators() {
  HeldPlace held;
  held.reset(5);
  const int places[2] = {};
  std::atomic<bool> done{false};
  std::thread program([&] {
    OpenSpan spans[2];
    for (uint32_t at = 0; at < 2; ++at) {
      spans[at].frame = &places[at];
      spans[at].stack = spans[at].module = at + 1;
      spans[at].holds_frame = true;
    }
    for (uint32_t turn = 0; !done; ++turn) {
      held.set(&spans[turn % 2]);
      if (turn % 3 == 0) held.set(nullptr);
    }
  });
  uint64_t seen[2] = {0, 0};
  while (seen[0] < 1000 || seen[1] < 1000) {
    for (uint32_t at = 0; at < 2; ++at) {
      uint32_t stack = 0, module = 0;
      if (!held.read(5, [&] { return &places[at]; }, stack, module)) continue;
      ++seen[at];
      CHECK(stack == module && (stack == 1 || stack == 2));
    }
  }
  uint32_t stack = 0, module = 0;
  CHECK(!held.read(6, [&] { return &places[0]; }, stack, module));
  done = true;
  program.join();
}

// A thread changes its frames in place, without order, and frees what it has left; each sample is one of the
// stacks that it had.
void never_mix_two_moments() {
  World world;
  const Code* codes[] = {new_code("even", 100), new_code("odd", 200)};
  const Code* root = new_code("root", 10);
  Frame first{nullptr, root, root->instructions, nullptr, 0};
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  world.main.frame = &first;
  Running running;
  std::atomic<bool> done{false};
  std::thread program([&] {
    void* place = nullptr;
    for (uint64_t turn = 0; !done; ++turn) {
      if (turn % 16 == 0) {
        // Where the frame was is nothing any more, for a moment.
        world.main.frame = &first;
        if (place != nullptr) munmap(place, page);
        place = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      }
      auto* frame = static_cast<volatile Frame*>(place);
      const int which = static_cast<int>(turn % 2);
      frame->code = codes[which];
      frame->previous = &first;
      frame->instruction = codes[which]->instructions + 5;
      world.main.frame = static_cast<const Frame*>(place);
    }
    world.main.frame = &first;
    if (place != nullptr) munmap(place, page);
  });
  {
    Sampler sampler(*running.session, world.here(), nullptr);
    for (int turn = 0; turn < 20'000; ++turn) sampler.round(kStay);
  }
  done = true;
  program.join();
  std::string path = running.path;
  running.close();
  const MappedFile file(path);
  const Recording recording = parse_recording(file.bytes());
  const std::vector<std::string> places = shown(recording);
  const std::set<std::string> kinds(places.begin(), places.end());
  for (const std::string& kind : kinds)
    CHECK(kind == "even:105/2" || kind == "odd:205/2" || kind == "root:10/1");
  CHECK(places.size() + recording.losses.torn_samples == 20'000);
}

// A code object that goes, and another one in its place, are told apart.
void notice_code_that_takes_the_place_of_another() {
  World world;
  Code* code = new_code("before", 100);
  Frame first{nullptr, code, code->instructions + 2, nullptr, 0};
  world.main.frame = &first;
  Running running;
  {
    Sampler sampler(*running.session, world.here(), nullptr);
    sampler.round(kStay);
    code->function = new_text("after");
    sampler.round(kStay);  // still known by its address: nobody said that it went
    code_gone(code);
    sampler.round(kStay);
    live.code_is_watched = false;
    code->function = new_text("unwatched");
    sampler.round(kStay);
    live.code_is_watched = true;
  }
  std::string path = running.path;
  running.close();
  const MappedFile file(path);
  const std::vector<std::string> places = shown(parse_recording(file.bytes()));
  CHECK(places ==
        std::vector<std::string>({"before:102/1", "before:102/1", "after:102/1", "unwatched:102/1"}));
}

void sample_between_start_and_stop() {
  World world;
  const Code* code = new_code("work", 100);
  Frame first{nullptr, code, code->instructions + 2, nullptr, 0};
  world.main.frame = &first;
  for (int turn = 0; turn < 20; ++turn) {
    Running running(turn % 2 == 0 ? 0 : kLeastRingBytes);
    CHECK(sampling::start(*running.session, world.here(), nullptr, 100'000).empty());
    const FileHeader& header = running.file->header();
    // A sample each few turns; the others end in the middle of a pause.
    if (turn % 4 == 0) {
      while (std::atomic_ref(const_cast<uint64_t&>(header.chunks)).load() < 2) std::this_thread::yield();
    }
    sampling::stop();
    const uint64_t chunks = header.chunks;
    sampling::stop();
    std::string path = running.path;
    running.close();
    const MappedFile file(path);
    const Recording recording = parse_recording(file.bytes());
    CHECK(turn % 4 != 0 || (chunks >= 2 && recording.samples.time_ns.size() > 0));
  }
  World other;
  other.interpreter.newest = nullptr;
  Running running;
  CHECK(sampling::start(*running.session, other.here(), nullptr, 100'000).find("Python") !=
        std::string::npos);
}

void keep_the_latest_in_a_ring() {
  World world;
  const Code* code = new_code("work", 100);
  Frame first{nullptr, code, code->instructions + 2, nullptr, 0};
  world.main.frame = &first;
  Running running(kLeastRingBytes);
  {
    Sampler sampler(*running.session, world.here(), nullptr);
    for (int turn = 0; turn < 10'000; ++turn) sampler.round(kStay);
  }
  std::string path = running.path;
  running.close();
  const MappedFile file(path);
  const Recording recording = parse_recording(file.bytes());
  CHECK(recording.samples.time_ns.size() > 0 && recording.losses.recycled_samples > 0);
  CHECK(recording.samples.time_ns.size() + recording.losses.recycled_samples == 10'000);
}

}  // namespace

int main() {
  active_clock = choose_clock();
  prepare_quiescence();
  read_what_is_there_and_nothing_else();
  find_lines();
  see_threads_and_frames();
  write_samples_of_each_thread();
  say_what_a_thread_waits_for();
  leave_alone_a_thread_that_rests();
  take_the_place_of_an_open_operator();
  never_mix_two_operators();
  never_mix_two_moments();
  notice_code_that_takes_the_place_of_another();
  sample_between_start_and_stop();
  keep_the_latest_in_a_ring();
  return kinetoscope::testing::checks_failed();
}
