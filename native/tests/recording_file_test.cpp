// Threads that write chunks and dictionary entries side by side, the helper thread beside them, a reader over
// both.
#include "recorder/recording_file.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/mapped_file.h"
#include "core/recording_reader.h"
#include "recorder/clock.h"
#include "recorder/dictionary.h"
#include "recorder/room_keeper.h"

using namespace kinetoscope;

namespace {

constexpr uint32_t kChunkBytes = 8192;

std::string temporary_path(const char* name) {
  return (std::filesystem::temp_directory_path() / (std::string(name) + "-" + std::to_string(getpid())))
      .string();
}

// Writes `count` spans as a recorder's thread does: record first, then the count that makes it part of the
// file.
uint64_t write_spans(RecordingFile& file, Dictionary& dictionary, uint32_t thread, uint64_t count) {
  ChunkHeader* chunk = nullptr;
  uint64_t used = 0;
  uint64_t dropped = 0;
  for (uint64_t number = 0; number < count; ++number) {
    if (chunk == nullptr || used == file.span_capacity()) {
      if (chunk != nullptr) file.retire_chunk(chunk);
      chunk = file.take_chunk(ChunkKind::Spans, thread);
      room_keeper::wake();
      used = 0;
      if (chunk == nullptr) {
        ++dropped;
        continue;
      }
    }
    uint32_t name = 0;
    {
      std::lock_guard lock(dictionary.mutex());
      name = dictionary.name("operator " + std::to_string(number % 50), "");
    }
    SpanRecord& span = reinterpret_cast<SpanRecord*>(chunk + 1)[used++];
    span = SpanRecord{};
    span.start_tick = read_tick();
    span.name = name;
    span.sequence = -1;
    std::atomic_ref(chunk->committed).store(used, std::memory_order_release);
    std::atomic_ref(span.end_tick).store(read_tick(), std::memory_order_relaxed);
  }
  if (chunk != nullptr) file.retire_chunk(chunk);
  return dropped;
}

// What a reader makes of the file. Its texts point into the mapping and are left out.
Recording numbers_in(const std::string& path) {
  const MappedFile file(path);
  Recording recording = parse_recording(file.bytes());
  recording.dictionary = {};
  return recording;
}

struct Written {
  uint64_t dropped = 0;
  Recording recording;
};

Written record(const std::string& path, uint64_t ring_chunks, uint32_t threads, uint64_t spans_each) {
  Written written;
  active_clock = choose_clock();
  CHECK(room_keeper::ensure_running());
  auto file = std::make_shared<RecordingFile>(path, kChunkBytes, ring_chunks);
  Dictionary dictionary(file);
  file->add_clock_pair(read_clock_pair());
  file->header().start_tick = read_tick();
  room_keeper::watch(file);
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
  file->close_books(file->header().stop_tick);
  written.dropped = dropped;
  written.recording = numbers_in(path);
  room_keeper::release(file, nullptr);
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
  const std::string path = temporary_path("kinetoscope-ring");
  const Written written = record(path, 8, 2, 20000);
  const uint64_t capacity = (kChunkBytes - sizeof(ChunkHeader)) / sizeof(SpanRecord);
  CHECK(written.recording.spans.size() <= 8 * capacity);
  CHECK(written.recording.spans.size() + written.recording.losses.recycled_spans + written.dropped == 40000);
}

void an_impossible_path_throws() {
  CHECK_THROWS(RecordingFile("/nonexistent-folder/recording", kChunkBytes, 0), std::exception);
}

void long_strings_are_cut_between_characters() {
  const std::string path = temporary_path("kinetoscope-strings");
  {
    auto file = std::make_shared<RecordingFile>(path, kDefaultChunkBytes, 0);
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
  everything_written_is_read();
  a_ring_keeps_its_size();
  an_impossible_path_throws();
  long_strings_are_cut_between_characters();
  return testing::checks_failed();
}
