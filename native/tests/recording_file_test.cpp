// Threads that write chunks and dictionary entries side by side, the helper thread beside them, a reader over
// both.
#include "recorder/recording_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "check.h"
#include "core/recording/chunks.h"
#include "core/recording/clone.h"
#include "core/recording/fault_guard.h"
#include "core/recording/mapped_file.h"
#include "core/recording/reader.h"
#include "recorder/clock.h"
#include "recorder/dictionary.h"
#include "recorder/helper_thread.h"
#include "recorder/maintenance_thread.h"
#include "recorder/row_writer.h"
#include "torch_threads_without_torch.h"

using namespace kinetoscope;

namespace {

std::string temporary_path(const char* name) {
  return (std::filesystem::temp_directory_path() / (std::string(name) + "-" + std::to_string(getpid())))
      .string();
}

// The site of spans with that number in their name, and such sequence numbers.
uint32_t site_of_operator(Dictionary& dictionary, uint64_t number, int64_t sequence) {
  std::lock_guard lock(dictionary.mutex());
  return dictionary.site({.name = dictionary.name("operator " + std::to_string(number), ""),
                          .scope_and_sequence = SpanSite::rest_of(0, sequence)});
}

// Writes `count` spans as a recorder's thread does: record first, then the count that makes it part of the
// file.
uint64_t write_spans(RecordingFile& file, Dictionary& dictionary, uint32_t thread, uint64_t count) {
  RecordingFile::Chunk taken;
  ChunkHeader* chunk = nullptr;
  uint64_t used = 0;
  uint64_t dropped = 0;
  for (uint64_t number = 0; number < count; ++number) {
    if (chunk == nullptr || used == taken.payload_bytes / sizeof(CompactSpan)) {
      if (chunk != nullptr) file.retire_chunk(chunk);
      taken = file.take_chunk(ChunkKind::Spans, thread, taken.payload_bytes, sizeof(CompactSpan));
      chunk = taken.header;
      maintenance_thread::wake();
      used = 0;
      if (chunk == nullptr) {
        file.count_dropped(ChunkKind::Spans, 1);
        ++dropped;
        continue;
      }
    }
    const uint32_t site = site_of_operator(dictionary, number % 50, -1);
    CompactSpan& span = reinterpret_cast<CompactSpan*>(chunk + 1)[used++];
    const uint64_t start_tick = read_tick();
    span = compact({.start_tick = start_tick}, site);
    std::atomic_ref(chunk->committed).store(used, std::memory_order_release);
    std::atomic_ref(span.end).store(CompactSpan::end_of(start_tick, read_tick()), std::memory_order_relaxed);
  }
  if (chunk != nullptr) file.retire_chunk(chunk);
  return dropped;
}

// Writes records of one kind as a recorder's thread does, one at a time, so that a test says who writes when.
template <typename Record>
class RecordWriter {
 public:
  RecordWriter(RecordingFile& file, ChunkKind kind, uint32_t thread)
      : file_(file), kind_(kind), thread_(thread) {}

  // False, and counted in the file, where there is no room.
  bool write(const Record& record) {
    if (chunk_.header == nullptr || used_ == chunk_.payload_bytes / sizeof(Record)) {
      if (chunk_.header != nullptr) file_.retire_chunk(chunk_.header);
      chunk_ = file_.take_chunk(kind_, thread_, chunk_.payload_bytes, sizeof(Record));
      chunks_ += chunk_.header != nullptr;
      used_ = 0;
    }
    if (chunk_.header == nullptr) {
      file_.count_dropped(kind_, 1);
      return false;
    }
    reinterpret_cast<Record*>(chunk_.header + 1)[used_++] = record;
    std::atomic_ref(chunk_.header->committed).store(used_, std::memory_order_release);
    ++written_;
    return true;
  }
  // Its thread ends.
  void end() {
    if (chunk_.header != nullptr) file_.retire_chunk(chunk_.header);
    chunk_ = {};
  }
  uint64_t written() const { return written_; }
  uint64_t chunks() const { return chunks_; }

 private:
  RecordingFile& file_;
  const ChunkKind kind_;
  const uint32_t thread_;
  RecordingFile::Chunk chunk_;
  uint64_t used_ = 0, written_ = 0, chunks_ = 0;
};

CompactSpan span_at(uint64_t tick) { return compact({.start_tick = tick, .end_tick = tick + 1}, 0); }

// What a reader makes of the file. Its texts point into the mapping and are left out.
Recording numbers_in(const std::string& path) {
  const MappedFile file(path);
  Recording recording = parse_recording(file.bytes());
  recording.dictionary = {};
  return recording;
}

struct Written {
  uint64_t dropped = 0;
  uint64_t file_bytes = 0;
  Recording recording;
};

Written record(const std::string& path, uint64_t ring_bytes, uint32_t threads, uint64_t spans_each) {
  Written written;
  active_clock = choose_clock();
  CHECK(maintenance_thread::ensure_running());
  auto file = std::make_shared<RecordingFile>(path, ring_bytes);
  Dictionary dictionary(file);
  file->add_clock_pair(read_clock_pair());
  file->header().start_tick = read_tick();
  maintenance_thread::watch(file);
  file->publish(0);
  std::atomic<uint64_t> dropped{0};
  std::vector<std::thread> writers;
  for (uint32_t thread = 1; thread <= threads; ++thread) {
    {
      std::lock_guard lock(dictionary.mutex());
      dictionary.thread(thread, 1000 + thread, thread, "writer");
    }
    writers.emplace_back([&, thread] { dropped += write_spans(*file, dictionary, thread, spans_each); });
  }
  for (std::thread& writer : writers) writer.join();
  file->add_clock_pair(read_clock_pair());
  file->header().stop_tick = read_tick();
  file->mark_stopped();
  written.dropped = dropped;
  written.recording = numbers_in(path);
  written.file_bytes = std::filesystem::file_size(path);
  maintenance_thread::release(file, nullptr);
  unlink(path.c_str());
  return written;
}

void everything_written_is_read() {
  const Written written = record(temporary_path("kinetoscope-plain"), 0, 4, 5000);
  CHECK(written.dropped == 0);
  CHECK(written.recording.spans.size() == 20000);
  CHECK(written.recording.losses.unfinished_spans == 0);
  CHECK(written.recording.losses.damaged_chunks == 0);
}

void a_ring_keeps_its_size() {
  const Written written = record(temporary_path("kinetoscope-ring"), 128 * 1024, 2, 20000);
  CHECK(written.file_bytes <= 128 * 1024);
  // What is never free, see a_full_ring_keeps_most_of_its_bytes(), less the names.
  CHECK(written.recording.spans.size() > 1300);
  CHECK(written.recording.spans.size() + written.recording.losses.recycled_spans + written.dropped == 40000);
  CHECK(written.recording.losses.ring_dropped_spans == written.dropped);
}

// However the chunks of several threads, some of which end, lie among each other.
void a_full_ring_keeps_most_of_its_bytes() {
  for (const uint64_t ring_bytes : {uint64_t{128} * 1024, uint64_t{1} << 20, uint64_t{8} << 20}) {
    for (const uint32_t threads : {2u, 5u, 12u}) {
      const std::string path = temporary_path("kinetoscope-full");
      RecordingFile file(path, ring_bytes);
      std::mt19937 random(threads);
      std::deque<RecordWriter<CompactSpan>> writers;
      for (uint32_t thread = 1; thread <= threads; ++thread)
        writers.emplace_back(file, ChunkKind::Spans, thread);
      const uint64_t capacity = ring_bytes / sizeof(CompactSpan);
      uint64_t written = 0, least = capacity;
      // Each round one of them writes, the first most of the time, and then it may end.
      const uint64_t rings = testing::times(4, 40);
      while (written < rings * capacity) {
        const uint32_t who = random() % 3 == 0 ? 0 : random() % threads;
        for (uint32_t count = 1 + random() % 400; count > 0; --count) {
          CHECK(writers[who].write(span_at(++written)));
        }
        if (random() % 16 == 0) writers[who].end();
        if (written > 2 * capacity) least = std::min(least, written - file.header().recycled_spans);
      }
      CHECK(least > capacity * 3 / 4);
      uint64_t chunks = 0;
      for (const auto& writer : writers) chunks += writer.chunks();
      // Not by handing out ever shorter chunks; with many threads in a small ring all are as short as can be.
      CHECK(written / chunks >= (ring_bytes < 1 << 20 ? 20 : 50));
    }
  }
}

AllocationRecord allocation_at(uint64_t tick) {
  AllocationRecord record{};
  record.tick = tick;
  record.bytes = 64;
  return record;
}

SampleRecord sample_at(uint64_t tick, uint32_t thread) {
  SampleRecord record{};
  record.tick = record.since_tick = tick;
  record.thread = thread;
  return record;
}

// A program that hangs: the sampler goes on, a hundred times a second, and nothing else does. One minute of
// it is more than a ring takes.
void samples_leave_the_last_steps() {
  constexpr uint32_t kIdle = 40, kMain = kIdle + 1, kSteps = 300, kSpansOfAStep = 1000;
  const std::string path = temporary_path("kinetoscope-hang");
  uint64_t tick = 1000, written = 0, samples = 0;
  {
    const auto shared = std::make_shared<RecordingFile>(path, 1'000'000);
    RecordingFile& file = *shared;
    file.publish(0);
    file.header().start_tick = tick;
    Dictionary dictionary(shared);
    const uint32_t site = site_of_operator(dictionary, 0, 0);
    std::deque<RecordWriter<CompactSpan>> idle;
    for (uint32_t thread = 1; thread <= kIdle; ++thread) {
      idle.emplace_back(file, ChunkKind::Spans, thread);
      CHECK(idle.back().write(span_at(tick)));
    }
    RecordWriter<CompactSpan> spans(file, ChunkKind::Spans, kMain);
    RecordWriter<SampleRecord> sampler(file, ChunkKind::Samples, 0);
    const auto sample_all = [&] {
      for (uint32_t thread = 1; thread <= kMain; ++thread) {
        CHECK(sampler.write(sample_at(++tick, thread)));
        ++samples;
      }
    };
    for (uint32_t step = 0; step < kSteps; ++step) {
      for (uint32_t number = 0; number < kSpansOfAStep; ++number) {
        tick += 2;
        CHECK(spans.write(compact({.start_tick = tick, .end_tick = tick + 1, .sequence = step}, site)));
        ++written;
      }
      sample_all();
    }
    const uint64_t minutes = testing::times(3, 60);
    for (uint64_t round = 0; round < minutes * 60 * 100; ++round) sample_all();
    file.mark_stopped();
  }
  const Recording recording = numbers_in(path);
  CHECK(recording.losses.damaged_chunks == 0);
  CHECK(recording.losses.ring_dropped_spans == 0 && recording.losses.ring_dropped_samples == 0);
  CHECK(recording.spans.size() + recording.losses.recycled_spans == written + kIdle);
  CHECK(recording.samples.time_ns.size() + recording.losses.recycled_samples == samples);
  // Six parts of seven of the ring, but for headers and for what is free.
  CHECK(recording.spans.size() * sizeof(CompactSpan) > 690'000);
  CHECK(recording.samples.time_ns.size() * sizeof(SampleRecord) > 100'000);
  std::vector<uint64_t> of_step(kSteps);
  for (std::size_t row = 0; row < recording.spans.size(); ++row) {
    if (recording.spans.sequence[row] >= 0)
      ++of_step[static_cast<std::size_t>(recording.spans.sequence[row])];
  }
  for (uint32_t step = kSteps - 12; step < kSteps; ++step) CHECK(of_step[step] == kSpansOfAStep);
  unlink(path.c_str());
}

void no_kind_pushes_out_another() {
  constexpr uint64_t kRingBytes = 1 << 20, kMany = 400'000;
  RecordingFile file(temporary_path("kinetoscope-kinds"), kRingBytes);
  RecordWriter<CompactSpan> spans(file, ChunkKind::Spans, 1);
  RecordWriter<AllocationRecord> allocations(file, ChunkKind::Allocations, 1);
  RecordWriter<NoteRecord> notes(file, ChunkKind::Notes, 1);
  RecordWriter<SampleRecord> samples(file, ChunkKind::Samples, 0);
  const FileHeader& head = file.header();
  // Parts of the ring, in percent.
  const auto percent = [](uint64_t records, size_t bytes) { return records * bytes * 100 / kRingBytes; };
  const auto of_spans = [&] { return percent(spans.written() - head.recycled_spans, sizeof(CompactSpan)); };
  const auto of_allocations = [&] {
    return percent(allocations.written() - head.recycled_allocations, sizeof(AllocationRecord));
  };
  const auto of_notes = [&] { return percent(notes.written() - head.recycled_notes, sizeof(NoteRecord)); };
  const auto of_samples = [&] {
    return percent(samples.written() - head.recycled_samples, sizeof(SampleRecord));
  };
  uint64_t tick = 0;
  const auto write_spans = [&] {
    for (uint64_t count = 0; count < kMany; ++count) CHECK(spans.write(span_at(++tick)));
  };
  const auto write_allocations = [&] {
    for (uint64_t count = 0; count < kMany; ++count) CHECK(allocations.write(allocation_at(++tick)));
  };
  // Nobody else wants the room.
  write_spans();
  CHECK(of_spans() >= 80);
  // Two parts of three belong to spans, one to allocations.
  write_allocations();
  CHECK(of_spans() >= 50 && of_allocations() >= 20);
  const uint64_t recycled_spans = head.recycled_spans;
  write_allocations();
  CHECK(head.recycled_spans == recycled_spans);
  write_spans();
  CHECK(of_spans() >= 50 && of_allocations() >= 20);
  const uint64_t recycled_allocations = head.recycled_allocations;
  write_spans();
  CHECK(head.recycled_allocations == recycled_allocations);
  // A thirteenth belongs to samples, three to notes, and all get theirs however late they come.
  for (uint64_t count = 0; count < kMany; ++count) {
    CHECK(samples.write(sample_at(++tick, 1)));
    NoteRecord note;
    note.span_tick = tick;
    CHECK(notes.write(note));
  }
  CHECK(of_samples() >= 4 && of_notes() >= 15 && of_spans() >= 35 && of_allocations() >= 15);
  write_spans();
  write_allocations();
  CHECK(of_samples() >= 4 && of_notes() >= 15 && of_spans() >= 35 && of_allocations() >= 15);
  CHECK(head.ring_dropped_spans + head.ring_dropped_allocations + head.ring_dropped_notes == 0);
}

void names_that_never_repeat_have_a_bound() {
  const std::string path = temporary_path("kinetoscope-names");
  {
    auto file = std::make_shared<RecordingFile>(path, 256 * 1024);
    file->publish(0);
    Dictionary dictionary(file);
    std::unique_lock lock(dictionary.mutex());
    uint32_t shapes = 0, names = 0;
    for (uint64_t number = 0; number < 20'000; ++number) {
      const TextKey key{mix(number + 1), number};
      uint32_t id = dictionary.find_shapes(key);
      if (id == 0) id = dictionary.shapes(key, "[[" + std::to_string(number) + "]]", "[]", "[]");
      shapes += id != kUnknownId;
    }
    // Shapes have left room for names, and these for what is said at the end.
    for (uint64_t number = 0; number < 20'000; ++number)
      names += dictionary.name("name " + std::to_string(number), "") != kUnknownId;
    CHECK(shapes > 100 && shapes < 5000);
    CHECK(names > 100 && names < 5000);
    dictionary.info("last", "1");
    CHECK(file->header().limited_dictionary == 40'000 - shapes - names);
    lock.unlock();
    CHECK(write_spans(*file, dictionary, 1, 10'000) == 0);
    CHECK(file->header().recycled_spans > 0);
    file->mark_stopped();
  }
  const MappedFile file(path);
  CHECK(file.bytes().size() <= 256 * 1024);
  const Recording recording = parse_recording(file.bytes());
  CHECK(recording.dictionary.info.size() == 1);
  CHECK(recording.losses.damaged_entries == 0 && recording.losses.damaged_chunks == 0);
  CHECK(recording.dictionary.strings.back() == "(name not recorded)");
  const auto unnamed = static_cast<int32_t>(recording.dictionary.strings.size() - 1);
  const int32_t* given = recording.spans.name.data();
  CHECK(std::find(given, given + recording.spans.size(), unnamed) != given + recording.spans.size());
  unlink(path.c_str());
}

void many_threads_share_a_ring() {
  const std::string path = temporary_path("kinetoscope-threads");
  {
    RecordingFile file(path, 256 * 1024);
    for (uint32_t thread = 1; thread <= 100; ++thread) {
      const auto chunk =
          file.take_chunk(ChunkKind::Spans, thread, thread < 20 ? 8192 : 0, sizeof(CompactSpan));
      CHECK(chunk.header != nullptr);
      if (chunk.header == nullptr) break;
    }
  }
  unlink(path.c_str());
}

// Waking the thread that prepares space costs the program as much as a hundred records.
void space_is_prepared_in_pieces(uint64_t ring_bytes) {
  const std::string path = temporary_path("kinetoscope-pieces");
  {
    RecordingFile file(path, ring_bytes);
    unsigned chunks = 0, wakes = 0;
    for (; chunks < 4096 && file.take_chunk(ChunkKind::Spans, 1, 0, sizeof(CompactSpan)).header != nullptr;
         ++chunks) {
      if (!file.wants_space()) continue;
      ++wakes;
      file.prepare_space();
      CHECK(!file.wants_space());
    }
    CHECK(chunks > 1000);
    CHECK(wakes < 20);
  }
  unlink(path.c_str());
}

void what_nobody_wants_any_more_makes_room() {
  const std::string path = temporary_path("kinetoscope-freed");
  {
    auto file = std::make_shared<RecordingFile>(path, 0);
    file->publish(0);
    Dictionary dictionary(file);
    file->header().start_tick = read_tick();
    uint64_t units = 0;
    for (uint32_t number = 0; number < 10; ++number) {
      const uint64_t begin_tick = read_tick();
      CHECK(write_spans(*file, dictionary, 1, 5000) == 0);
      file->prepare_space();  // gives the chunks their checksums
      file->free_before(begin_tick);
      if (number == 1) units = file->header().chunks;
    }
    CHECK(file->header().chunks <= 2 * units);
    CHECK(file->header().recycled_chunks > 0 && file->header().recycled_spans == 0);
    file->free_before(0);
    file->header().stop_tick = read_tick();
    file->mark_stopped();
    file->seal();
  }
  const MappedFile file(path);
  const Recording recording = parse_recording(file.bytes());
  CHECK(recording.spans.size() >= 5000 && recording.spans.size() < 15'000);
  CHECK(recording.losses.damaged_chunks == 0 && recording.losses.damaged_entries == 0);
  CHECK(recording.losses.recycled_spans == 0);
  unlink(path.c_str());
}

// Spans come a thousand times as often as rows, and the rows of a quiet source are as old as the ring's
// first.
void spans_leave_rows_alone() {
  const std::string path = temporary_path("kinetoscope-rows");
  {
    auto file = std::make_shared<RecordingFile>(path, 128 * 1024);
    file->publish(0);
    Dictionary dictionary(file);
    RowWriter rows(file);
    file->header().start_tick = read_tick();
    for (uint32_t number = 0; number < 40; ++number) {
      rows.append(3, "counters", 2, kRowsBuffered, R"({"value": [1, 2]})");
      rows.append(3, "toggles", 1, 0, R"({"on": [true]})");
      CHECK(write_spans(*file, dictionary, 1, 1000) == 0);
    }
    CHECK(file->header().recycled_spans > 10'000);
    file->header().stop_tick = read_tick();
    file->mark_stopped();
  }
  const MappedFile file(path);
  CHECK(file.bytes().size() <= 128 * 1024);
  const Recording recording = parse_recording(file.bytes());
  CHECK(recording.losses.recycled_rows == 0 && recording.losses.ring_dropped_rows == 0);
  CHECK(recording.losses.damaged_chunks == 0 && recording.losses.damaged_entries == 0);
  CHECK(recording.rows.size() == 80);
  int64_t counted_ns = 0, toggled_ns = 0;
  for (const TableRows& rows : recording.rows) {
    const bool counters = rows.table == "counters";
    int64_t& before_ns = counters ? counted_ns : toggled_ns;
    CHECK(rows.session == 3 && rows.time_ns >= before_ns);
    CHECK(counters || rows.table == "toggles");
    CHECK(rows.rows == (counters ? 2 : 1) && rows.buffered == counters);
    CHECK(rows.json == (counters ? R"({"value": [1, 2]})" : R"({"on": [true]})"));
    before_ns = rows.time_ns;
  }
  unlink(path.c_str());
}

void rows_have_a_share_of_a_ring() {
  for (const uint64_t ring_bytes : {uint64_t{1}, uint64_t{128} * 1024, uint64_t{1} << 20}) {
    const std::string path = temporary_path("kinetoscope-rows-share");
    constexpr uint64_t kAppended = 30'000;
    const std::string long_text(1 << 20, 'x');
    {
      auto file = std::make_shared<RecordingFile>(path, ring_bytes);
      file->publish(0);
      Dictionary dictionary(file);
      RowWriter rows(file);
      CHECK(write_spans(*file, dictionary, 1, 500) == 0);
      for (uint32_t number = 0; number < 10; ++number) rows.append(0, "quiet", 1, 0, "{}");
      for (uint32_t number = 0; number < kAppended; ++number)
        rows.append(number / 1000, "toggles", 1, 0, R"({"on": [true], "activity": ["CPU"]})");
      // More than the share, and more than may be appended at once.
      rows.append(0, "toggles", 5, 0, long_text);
      rows.append(0, "toggles", 7, 0, std::string(kMostRowsBytes + 1, 'x'));
      file->mark_stopped();
    }
    const MappedFile file(path);
    const Recording recording = parse_recording(file.bytes());
    const RecordingLosses& losses = recording.losses;
    CHECK(recording.spans.size() == 500 && losses.recycled_spans == 0);
    CHECK(recording.rows.size() > std::max(ring_bytes, kLeastRingBytes) / 8 / 128);
    CHECK(recording.rows.size() + losses.recycled_rows == kAppended + 10);
    // The busy table has pushed out none of the quiet one.
    CHECK(std::count_if(recording.rows.begin(), recording.rows.end(),
                        [](const TableRows& rows) { return rows.table == "quiet"; }) == 10);
    CHECK(losses.ring_dropped_rows == 12);
    CHECK(losses.damaged_chunks == 0 && losses.damaged_entries == 0);
    uint64_t bytes = 0;
    for (const TableRows& rows : recording.rows)
      bytes += sizeof(RowsHeader) + rows.table.size() + rows.json.size();
    CHECK(bytes <= std::max(ring_bytes, kLeastRingBytes) / 8);
    unlink(path.c_str());
  }
}

void rows_without_a_ring_are_all_kept() {
  const std::string path = temporary_path("kinetoscope-rows-all");
  const std::string text(3 << 20, 'x');
  {
    auto file = std::make_shared<RecordingFile>(path);
    file->publish(0);
    RowWriter rows(file);
    // Two sessions in turn: each chunk is of one.
    for (uint32_t number = 0; number < 4000; ++number) rows.append(number % 2, "toggles", 1, 0, "{}");
    rows.append(2, "storages", 1, 0, text);
    CHECK(file->header().dropped_rows == 0);
    file->mark_stopped();
  }
  const MappedFile file(path);
  const Recording recording = parse_recording(file.bytes());
  CHECK(recording.losses.damaged_chunks == 0 && recording.rows.size() == 4001);
  CHECK(std::count_if(recording.rows.begin(), recording.rows.end(),
                      [](const TableRows& rows) { return rows.session == 1; }) == 2000);
  CHECK(recording.rows.back().json == text);
  unlink(path.c_str());
}

void short_threads_need_little() {
  const std::string path = temporary_path("kinetoscope-short-threads");
  {
    auto file = std::make_shared<RecordingFile>(path);
    file->publish(0);
    Dictionary dictionary(file);
    for (uint32_t thread = 1; thread <= 2000; ++thread)
      CHECK(write_spans(*file, dictionary, thread, 30) == 0);
    CHECK(file->header().chunks * kUnitBytes < 6 << 20);
    file->mark_stopped();
  }
  CHECK(numbers_in(path).spans.size() == 60'000);
  unlink(path.c_str());
}

void what_a_thread_leaves_goes_to_others() {
  RecordingFile file(temporary_path("kinetoscope-left"));
  const auto first = file.take_chunk(ChunkKind::Spans, 1, 16'000, sizeof(CompactSpan));
  file.retire_chunk(first.header);
  const uint64_t before = file.header().chunks;
  const auto second = file.take_chunk(ChunkKind::Notes, 2, 0, 67 * sizeof(NoteRecord));
  const auto third = file.take_chunk(ChunkKind::Spans, 3, 0, sizeof(CompactSpan));
  CHECK(second.header > first.header && third.header > second.header);
  CHECK(second.payload_bytes >= 67 * sizeof(NoteRecord));
  CHECK(file.header().chunks == before);
}

void flipped_bytes_are_seen() {
  const std::string path = temporary_path("kinetoscope-flipped");
  {
    auto file = std::make_shared<RecordingFile>(path);
    file->publish(0);
    Dictionary dictionary(file);
    file->add_clock_pair(read_clock_pair());
    file->header().start_tick = read_tick();
    CHECK(write_spans(*file, dictionary, 1, 300) == 0);
    file->add_clock_pair(read_clock_pair());
    file->header().stop_tick = read_tick();
    file->mark_stopped();
  }
  std::ifstream stream(path, std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(stream)), {});
  const auto parsed = [&bytes] { return parse_recording(std::as_bytes(std::span(bytes))); };
  const Recording whole = parsed();
  CHECK(whole.losses.damaged_header == 0 && whole.losses.damaged_chunks == 0);
  const std::size_t used = used_bytes(std::as_bytes(std::span(bytes)));
  std::size_t refused = 0, seen = 0;
  // Steps that have no factor in common with the size of a record, so that each byte of one is met.
  const std::size_t apart = testing::times(17, 7);
  for (std::size_t at = 0; at < used; at += at < sizeof(FileHeader) ? 1 : apart) {
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    try {
      const Recording now = parsed();
      const RecordingLosses& losses = now.losses;
      if (losses.damaged_header + losses.damaged_chunks != 0) {
        ++seen;
      } else {
        CHECK(std::equal(now.spans.duration_ns.data(), now.spans.duration_ns.data() + now.spans.size(),
                         whole.spans.duration_ns.data(),
                         whole.spans.duration_ns.data() + whole.spans.size()));
        CHECK(now.dictionary.strings == whole.dictionary.strings);
        CHECK(std::equal(now.spans.start_ns.data(), now.spans.start_ns.data() + now.spans.size(),
                         whole.spans.start_ns.data(), whole.spans.start_ns.data() + whole.spans.size()));
      }
    } catch (const RefusedRecording&) {
      ++refused;
    }
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
  }
  CHECK(seen > 2000 && refused > 8);
  unlink(path.c_str());
}

std::vector<std::byte> bytes_of(const std::string& path) {
  const MappedFile file(path);
  return {file.bytes().begin(), file.bytes().end()};
}

uint64_t losses_of(const RecordingLosses& losses) {
  return losses.damaged_header + losses.damaged_chunks + losses.damaged_records + losses.damaged_entries +
         losses.early_records;
}

// Puts the pages of `other` (none: zeros) in place of those of a recording, one after the other. Rows are
// missing or others than they were only where losses say so.
void no_page_vanishes_unseen(std::vector<std::byte> bytes, const std::vector<std::byte>& other) {
  constexpr std::size_t kPage = 4096;
  const Recording whole = parse_recording(bytes);
  CHECK(losses_of(whole.losses) == 0);
  std::size_t changed = 0;
  for (std::size_t page = 0; page < bytes.size(); page += kPage) {
    const std::size_t length = std::min(kPage, bytes.size() - page);
    const std::vector<std::byte> before(bytes.begin() + page, bytes.begin() + page + length);
    for (std::size_t at = 0; at < length; ++at)
      bytes[page + at] = page + at < other.size() ? other[page + at] : std::byte{0};
    try {
      const Recording now = parse_recording(bytes);
      // An old header says that the recording goes on.
      if (losses_of(now.losses) == 0 && now.stopped == whole.stopped) {
        CHECK(now.spans.size() == whole.spans.size() && now.notes.size() == whole.notes.size());
        CHECK(now.dictionary.strings.size() == whole.dictionary.strings.size());
      } else {
        ++changed;
      }
    } catch (const RefusedRecording&) {
      CHECK(page == 0);
    }
    std::copy(before.begin(), before.end(), bytes.begin() + page);
  }
  CHECK(changed > 5);
}

void no_chunk_vanishes_unseen(uint64_t ring_bytes) {
  const std::string path = temporary_path("kinetoscope-pages");
  std::vector<std::byte> early, killed;
  {
    auto file = std::make_shared<RecordingFile>(path, ring_bytes);
    file->publish(0);
    Dictionary dictionary(file);
    file->add_clock_pair(read_clock_pair());
    file->header().start_tick = read_tick();
    for (uint32_t thread = 1; thread <= 30; ++thread) {
      if (thread == 20) early = bytes_of(path);
      CHECK(write_spans(*file, dictionary, thread, 10 * thread) == 0);
    }
    // Still in use when the process is killed, and when the file is marked as stopped.
    for (uint32_t thread = 31; thread <= 33; ++thread)
      CHECK(file->take_chunk(ChunkKind::Spans, thread, 0, sizeof(CompactSpan)).header != nullptr);
    killed = bytes_of(path);
    file->add_clock_pair(read_clock_pair());
    file->header().stop_tick = read_tick();
    file->mark_stopped();
  }
  const std::vector<std::byte> closed = bytes_of(path);
  CHECK((parse_recording(closed).losses.recycled_spans != 0) == (ring_bytes != 0));
  no_page_vanishes_unseen(killed, {});
  no_page_vanishes_unseen(closed, {});
  // Pages whose last writes never reached the disk.
  no_page_vanishes_unseen(closed, early);
  unlink(path.c_str());
}

void an_impossible_path_throws() {
  CHECK_THROWS(RecordingFile("/nonexistent-folder/recording"), std::exception);
}

std::string new_folder() {
  std::string folder = temporary_path("kinetoscope-folder") + "-XXXXXX";
  CHECK(mkdtemp(folder.data()) != nullptr);
  return folder;
}

std::string refusal(const std::string& path) {
  try {
    const RecordingFile file(path);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

void what_is_no_file_stays_and_is_named() {
  const std::string folder = new_folder();
  CHECK(mkfifo((folder + "/pipe").c_str(), 0600) == 0);
  CHECK(symlink("elsewhere", (folder + "/link").c_str()) == 0);
  CHECK(refusal(folder + "/pipe").find("a named pipe") != std::string::npos);
  CHECK(refusal(folder + "/link").find("a symbolic link") != std::string::npos);
  CHECK(refusal(folder).find("a folder") != std::string::npos);
  CHECK(std::filesystem::is_fifo(folder + "/pipe"));
  CHECK(std::filesystem::is_symlink(folder + "/link") && !std::filesystem::exists(folder + "/elsewhere"));
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 2);
  std::filesystem::remove_all(folder);
}

void an_older_file_is_there_until_it_is_replaced() {
  const std::string folder = new_folder(), path = folder + "/a.recording";
  std::ofstream(path) << "older";
  const int older = open(path.c_str(), O_RDONLY);
  // Not published: as after a failed start.
  RecordingFile(path).add_clock_pair(read_clock_pair());
  std::string text;
  std::ifstream(path) >> text;
  CHECK(text == "older");
  RecordingFile file(path);
  file.publish(0);
  CHECK(file.path() == path);
  char bytes[8] = {};
  CHECK(pread(older, bytes, sizeof(bytes), 0) == 5 && std::string(bytes) == "older");
  close(older);
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 1);
  std::filesystem::remove_all(folder);
}

// The number of a span, and in its name what is left of that number by 50.
CompactSpan numbered_span(Dictionary& dictionary, uint64_t number) {
  const auto sequence = static_cast<int64_t>(number);
  const uint32_t site = site_of_operator(dictionary, number % 50, sequence);
  const uint64_t tick = read_tick();
  return compact({.start_tick = tick, .end_tick = read_tick(), .sequence = sequence}, site);
}

// Threads that write as fast as they can leave little of the processors to clones that a sanitizer slows
// down.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
const uint64_t kClones = testing::times(4, 10), kClonesOfRing = testing::times(10, 40);
#else
const uint64_t kClones = 20, kClonesOfRing = 200;
#endif

// At any moment, also one at which chunks are used again, a clone has what there is, and nothing else.
void clones_beside_writers(uint64_t ring_bytes) {
  const std::string path = temporary_path("kinetoscope-cloned"), copy = path + "-clone";
  active_clock = choose_clock();
  auto file = std::make_shared<RecordingFile>(path, ring_bytes);
  Dictionary dictionary(file);
  RowWriter rows(file);
  file->add_clock_pair(read_clock_pair());
  file->add_clock_pair(read_clock_pair());
  file->header().start_tick = read_tick();
  maintenance_thread::watch(file);
  file->publish(0);
  rows.append(0, "counters", 1, 0, R"({"value": [1]})");
  std::atomic<bool> going{true};
  std::atomic<uint64_t> written{0}, dropped{0};
  std::vector<std::thread> threads;
  for (uint32_t thread = 1; thread <= 3; ++thread) {
    threads.emplace_back([&, thread] {
      RecordWriter<CompactSpan> spans(*file, ChunkKind::Spans, thread);
      RecordWriter<AllocationRecord> allocations(*file, ChunkKind::Allocations, thread);
      // Without a ring the file must not grow for ever.
      for (uint64_t number = 0; going && (ring_bytes != 0 || number < 20'000); ++number) {
        dropped += !spans.write(numbered_span(dictionary, number));
        ++written;
        if (number % 4 == 0) static_cast<void>(allocations.write(allocation_at(read_tick())));
        if (thread == 3 && number % 64 == 0) rows.append(0, "counters", 1, 0, R"({"value": [1]})");
        // A thread that ends leaves a piece.
        if (number % 1000 == thread) spans.end();
      }
    });
  }
  while (written == 0) std::this_thread::yield();
  for (uint64_t number = 0; number < (ring_bytes == 0 ? kClones : kClonesOfRing); ++number) {
    const uint64_t dropped_before = dropped, before = written;
    clone_recording(path, copy);
    const uint64_t after = written, dropped_after = dropped;
    const std::vector<std::byte> bytes = bytes_of(copy);
    unlink(copy.c_str());
    const Recording recording = parse_recording(bytes);
    CHECK(recording.stopped && losses_of(recording.losses) == 0 && recording.losses.unfinished_spans == 0);
    CHECK(recording.losses.damaged_records == 0 && recording.losses.uncalibrated_clock == 0);
    // Each of the three writers may have written or dropped one that it has not counted.
    const uint64_t there = recording.spans.size() + recording.losses.recycled_spans;
    CHECK(there + dropped_after + 6 >= before && there + dropped_before <= after + 6);
    CHECK(recording.spans.size() > 0 && recording.rows.size() > 0);
    for (std::size_t row = 0; row < recording.spans.size(); ++row) {
      const auto name = recording.dictionary.strings[static_cast<std::size_t>(recording.spans.name[row])];
      CHECK(name == "operator " + std::to_string(recording.spans.sequence[row] % 50));
    }
    for (const TableRows& one : recording.rows) CHECK(one.json == R"({"value": [1]})");
  }
  going = false;
  for (std::thread& thread : threads) thread.join();
  file->header().stop_tick = read_tick();
  file->mark_stopped();
  maintenance_thread::release(file, nullptr);
  maintenance_thread::settle(10'000'000'000);
  // Of what is over, it is a copy like any other.
  file.reset();
  clone_recording(path, copy);
  const Recording original = numbers_in(path), last = numbers_in(copy);
  CHECK(losses_of(last.losses) == 0 && last.stop_ns == original.stop_ns);
  CHECK(last.spans.size() == original.spans.size());
  CHECK(last.losses.recycled_spans == original.losses.recycled_spans);
  CHECK_THROWS(clone_recording(path, copy), std::system_error);
  unlink(path.c_str());
  unlink(copy.c_str());
}

// However far a ring goes on while its chunks are listed, as when the reader has to wait for a processor:
// space that was used again is no damage, and nothing is read from it.
void a_ring_that_goes_on_is_not_damaged() {
  const std::string path = temporary_path("kinetoscope-goes-on");
  const auto shared = std::make_shared<RecordingFile>(path, 128 * 1024);
  RecordingFile& file = *shared;
  Dictionary dictionary(shared);
  file.publish(0);
  std::minstd_rand random(1);
  for (int trial = 0; trial < 50; ++trial) {
    write_spans(file, dictionary, 1, 500 + random() % 500);
    const MappedFile bytes(path);
    const uint64_t later = 1 + random() % 20;
    uint64_t seen = 0;
    const auto goes_on = [&](const ChunkHeader& chunk, const std::byte*, std::size_t) {
      // Chunks of other lengths than before.
      if (++seen % later == 0) write_spans(file, dictionary, 2 + seen % 7, random() % 3000);
      return static_cast<ChunkKind>(chunk.kind) == ChunkKind::Spans;
    };
    const ChunkList list = list_chunks(bytes.bytes(), read_header(bytes.bytes()), goes_on);
    CHECK(list.damaged == 0 && list.missing_records == 0);
    for (const RecordChunk& chunk : list.spans) {
      for (std::size_t row = 0; row < chunk.records; ++row) {
        const CompactSpan span = load_compact(chunk.payload + row * sizeof(CompactSpan));
        CHECK(span.site >= 1 && span.site <= 50 && span.end_tick() >= span.start_tick());
      }
    }
  }
  unlink(path.c_str());
}

// What is damaged in a recording is damaged in its clone.
void a_clone_hides_no_damage() {
  const std::string path = temporary_path("kinetoscope-damaged"), copy = path + "-clone";
  {
    auto file = std::make_shared<RecordingFile>(path);
    file->publish(0);
    Dictionary dictionary(file);
    CHECK(write_spans(*file, dictionary, 1, 2000) == 0);
    file->mark_stopped();
  }
  const std::vector<std::byte> whole = bytes_of(path);
  const std::size_t used = used_bytes(whole);
  uint64_t seen = 0;
  for (std::size_t at = kHeaderBytes; at < used; at += kUnitBytes) {
    std::vector<std::byte> bytes = whole;
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), kUnitBytes, std::byte{0});
    // And one that ends there.
    if (at / kUnitBytes % 2 == 0) bytes.resize(at + 500);
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    clone_recording(path, copy);
    const Recording original = numbers_in(path), clone = numbers_in(copy);
    unlink(copy.c_str());
    const bool damaged = losses_of(original.losses) != 0;
    CHECK(clone.spans.size() == original.spans.size());
    // That a part is missing in which nothing was, is nothing to its clone.
    CHECK(losses_of(clone.losses) == 0 ? clone.spans.size() == 2000 : damaged);
    seen += losses_of(clone.losses) != 0;
  }
  CHECK(seen > 20);
  unlink(path.c_str());
}

void a_frozen_ring_keeps_its_window() {
  const std::string path = temporary_path("kinetoscope-frozen");
  auto file = std::make_shared<RecordingFile>(path, 256 * 1024);
  file->publish(0);
  Dictionary dictionary(file);
  RowWriter rows(file);
  const FileHeader& head = file->header();
  RecordWriter<CompactSpan> spans(*file, ChunkKind::Spans, 1);
  RecordWriter<AllocationRecord> allocations(*file, ChunkKind::Allocations, 1);
  uint64_t number = 0;
  const uint64_t first_tick = read_tick();
  for (; number < 20'000; ++number) CHECK(spans.write(numbered_span(dictionary, number)));
  for (int count = 0; count < 2000; ++count) rows.append(0, "counters", 1, 0, R"({"value": [1]})");
  CHECK(head.recycled_spans > 0 && head.recycled_rows > 0);
  file->freeze();
  const uint64_t recycled = head.recycled_spans, recycled_rows = head.recycled_rows;
  const uint64_t until = head.recycled_until[static_cast<std::size_t>(ChunkKind::Spans)];
  CHECK(until > first_tick && until < read_tick());
  uint64_t lost = 0, lost_allocations = 0;
  for (uint64_t count = 0; count < 20'000; ++count, ++number)
    lost += !spans.write(numbered_span(dictionary, number));
  for (uint64_t count = 0; count < 1000; ++count)
    lost_allocations += !allocations.write(allocation_at(read_tick()));
  for (int count = 0; count < 2000; ++count) rows.append(0, "counters", 1, 0, R"({"value": [1]})");
  CHECK(lost > 10'000 && lost_allocations > 0 && head.recycled_spans == recycled);
  CHECK(head.ring_dropped_spans == lost && head.ring_dropped_allocations == lost_allocations);
  CHECK(head.recycled_rows == recycled_rows && head.ring_dropped_rows > 1000);
  // A name that comes only now.
  {
    std::lock_guard lock(dictionary.mutex());
    for (int name = 0; name < 50; ++name)
      CHECK(dictionary.name("late " + std::to_string(name), "") != kUnknownId);
  }
  const Recording frozen = numbers_in(path);
  CHECK(frozen.spans.size() == 20'000 - recycled + (20'000 - lost));
  CHECK(frozen.spans.sequence[0] == static_cast<int64_t>(recycled));
  file->thaw();
  for (uint64_t count = 0; count < 20'000; ++count, ++number)
    CHECK(spans.write(numbered_span(dictionary, number)));
  CHECK(head.recycled_spans > recycled && head.ring_dropped_spans == lost);
  file->mark_stopped();
  file.reset();
  const Recording thawed = numbers_in(path);
  CHECK(thawed.losses.damaged_chunks == 0);
  CHECK(thawed.spans.size() + thawed.losses.recycled_spans + lost == number);
  unlink(path.c_str());
}

void a_file_in_use_is_left_alone() {
  const std::string folder = new_folder(), path = folder + "/a.recording";
  const std::string with_number = ".p" + std::to_string(getpid());
  RecordingFile first(path), second(path), third(path);
  first.publish(0);
  second.publish(0);
  third.publish(0);
  CHECK(first.path() == path);
  CHECK(second.path() == folder + "/a" + with_number + ".recording");
  CHECK(third.path() == folder + "/a" + with_number + "-2.recording");
  first.mark_stopped();
  RecordingFile fourth(path);
  fourth.publish(0);
  CHECK(fourth.path() == path);
  // Of another process, and newer than the run.
  const std::string text = folder + "/text";
  std::ofstream(text) << "of a worker";
  RecordingFile fifth(text);
  fifth.publish(1);
  CHECK(fifth.path() == text + with_number);
  std::filesystem::remove_all(folder);
}

void a_file_that_is_cut_short_ends_nobody() {
  const std::string folder = new_folder(), path = folder + "/a.recording";
  auto file = std::make_shared<RecordingFile>(path);
  file->publish(0);
  Dictionary dictionary(file);
  CHECK(write_spans(*file, dictionary, 1, 500) == 0);
  CHECK(truncate(path.c_str(), 0) == 0);
  std::ofstream(path) << "somebody else's";
  CHECK(write_spans(*file, dictionary, 2, 2000) != 0);
  CHECK(file->lost());
  file->mark_stopped();
  std::string text;
  std::getline(std::ifstream(path), text);
  CHECK(text == "somebody else's");
  std::filesystem::remove_all(folder);
}

// A thread of our own that touches what the file no longer has.
struct Toucher {
  volatile char* mapped;
  std::atomic<bool> done{false};
};

void* touch(void* argument) {
  auto* self = static_cast<Toucher*>(argument);
  self->mapped[50'000] = 1;
  self->done.store(true);
  self->done.notify_one();
  return nullptr;
}

void a_thread_of_ours_survives_a_file_that_is_cut_short() {
  const std::string path = temporary_path("kinetoscope-touched");
  std::ofstream(path) << std::string(100'000, 'x');
  const int file = open(path.c_str(), O_RDWR);
  void* mapped = mmap(nullptr, 100'000, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  CHECK(mapped != MAP_FAILED);
  {
    const FaultGuard guard(mapped, 100'000);
    CHECK(truncate(path.c_str(), 0) == 0);
    Toucher toucher{static_cast<char*>(mapped)};
    CHECK(start_helper_thread(touch, &toucher, "toucher"));
    toucher.done.wait(false);
    CHECK(guard.file_lost());
  }
  munmap(mapped, 100'000);
  close(file);
  unlink(path.c_str());
}

void a_file_that_is_cut_short_can_be_read() {
  const std::string path = temporary_path("kinetoscope-short");
  std::ofstream(path) << std::string(100'000, 'x');
  const MappedFile file(path);
  CHECK(truncate(path.c_str(), 0) == 0);
  CHECK(file.bytes()[50'000] == std::byte{0} && file.file_lost());
  unlink(path.c_str());
}

void long_strings_are_cut_between_characters() {
  const std::string path = temporary_path("kinetoscope-strings");
  {
    auto file = std::make_shared<RecordingFile>(path);
    file->publish(0);
    Dictionary dictionary(file);
    std::lock_guard lock(dictionary.mutex());
    std::string text(kMaxStringBytes - 1, 'x');
    text += "\xC3\xA9 and more";
    CHECK(dictionary.string(text) == 1);
    CHECK(dictionary.string("short") == 2);
    CHECK(dictionary.string("short") == 2);
    CHECK(file->header().truncated_strings == 1);
  }
  const MappedFile file(path);
  const Recording recording = parse_recording(file.bytes());
  CHECK(recording.dictionary.strings.size() == 3);
  CHECK(recording.dictionary.strings[1].size() == kMaxStringBytes - 1);
  unlink(path.c_str());
}

}  // namespace

int main() {
  if (!testing::kLooksForRaces) {
    a_full_ring_keeps_most_of_its_bytes();
    samples_leave_the_last_steps();
    no_kind_pushes_out_another();
    names_that_never_repeat_have_a_bound();
    flipped_bytes_are_seen();
  }
  everything_written_is_read();
  a_ring_keeps_its_size();
  many_threads_share_a_ring();
  space_is_prepared_in_pieces(0);
  space_is_prepared_in_pieces(64 << 20);
  what_nobody_wants_any_more_makes_room();
  spans_leave_rows_alone();
  rows_have_a_share_of_a_ring();
  rows_without_a_ring_are_all_kept();
  short_threads_need_little();
  what_a_thread_leaves_goes_to_others();
  no_chunk_vanishes_unseen(0);
  no_chunk_vanishes_unseen(128 * 1024);
  an_impossible_path_throws();
  long_strings_are_cut_between_characters();
  what_is_no_file_stays_and_is_named();
  an_older_file_is_there_until_it_is_replaced();
  clones_beside_writers(128 * 1024);
  clones_beside_writers(1 << 20);
  clones_beside_writers(0);
  a_ring_that_goes_on_is_not_damaged();
  a_clone_hides_no_damage();
  a_frozen_ring_keeps_its_window();
  a_file_in_use_is_left_alone();
  a_file_that_is_cut_short_ends_nobody();
  a_thread_of_ours_survives_a_file_that_is_cut_short();
  a_file_that_is_cut_short_can_be_read();
  return testing::checks_failed();
}
