// The dictionary: names, stacks, frames, modules, shapes and parameters that records refer to by id. Each is
// written once to the file, and again by a collection (see dictionary_collection.h).
//
// Threads have caches of their own and come here only on a miss, so one mutex guards everything.
// Thread rule: never take the GIL while holding the mutex; callers may hold the GIL.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dictionary_collection.h"
#include "probing_table.h"
#include "recording_file.h"
#include "site_cache.h"

namespace kinetoscope {

// Lets a string map be searched by view.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

struct SiteKey : SpanSite {
  uint64_t hash() const { return hash_of(*this); }
};

// Interns entries by content. Ids start at 1 and are dense, except for collected entries. An entry for which
// the dictionary's share of the file has no space is counted as lost, is not stored here, and gets the id
// kUnknownId. So shapes that never repeat use bounded space in file and memory, and leave space for names,
// and these for modules and facts.
class Dictionary {
 public:
  explicit Dictionary(std::shared_ptr<RecordingFile> file);

  std::mutex& mutex() { return mutex_; }

  // [any thread] Increases when cached ids become invalid, except those in records.
  uint32_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  // [any thread] Whether a collection is due.
  bool asks_for_collection() const { return due_.load(std::memory_order_relaxed); }
  // [any thread] Whether there is little space for names left, so that a collection should run before the
  // next span.
  bool is_nearly_full() const { return nearly_full_.load(std::memory_order_relaxed); }

  // All members down to the collection: [with mutex()].
  uint32_t string(std::string_view text);
  uint32_t name(std::string_view name, std::string_view overload);
  uint32_t frame(std::string_view function, std::string_view filename, uint32_t line, uint32_t first_line);
  uint32_t stack(uint32_t parent, uint32_t frame);
  // Inputs are identified by a 128-bit digest; find_shapes() returns 0 for new ones, whose texts must be
  // built.
  uint32_t shapes(const TextKey& key, std::string_view dims, std::string_view types,
                  std::string_view concrete, std::string_view strides = {});
  // Returns kUnknownId for new ones if there is no space for them.
  uint32_t find_shapes(const TextKey& key);
  // If there is no space for a site with shapes, returns the site without them.
  uint32_t site(SpanSite site);

  uint32_t new_module(std::string_view class_name, uint32_t caller, uint64_t address);
  void name_module(uint32_t module, uint32_t parent, std::string_view attribute);
  uint32_t new_parameter(uint64_t address);
  void place_parameter(uint32_t parameter, uint64_t address, uint32_t module, std::string_view name);

  void thread(uint32_t index, uint32_t os_thread, uint64_t torch_thread, std::string_view name);
  void info(std::string_view key, std::string_view json);

  // The parts of a collection, for one thread at a time, without mutex().
  std::mutex& collecting() { return collecting_; }
  // Waits for a collection that is in progress, and lets no other begin: the file stays as it is.
  void end_collections();
  bool has_ended() const { return ended_; }
  // How far each chunk was written: what comes behind is new.
  using Extent = std::vector<std::pair<const ChunkHeader*, uint64_t>>;
  Extent extent();
  // Starts an epoch with new chunks, which contain the needed entries within `seen`, and all later threads,
  // modules and parameters; without the metadata of sessions before `first_session`.
  void begin_epoch(const Extent& seen, NeededIds needed, uint32_t first_session);
  // Whether there are chunks of the previous epoch.
  bool has_last_epoch() const { return !last_epoch_.empty(); }
  // Writes needed entries of the previous epoch that were not written again yet.
  void carry_rest(NeededIds needed);
  // Whether the needed entries take more than half of the space for names.
  bool is_crowded();
  // [any thread] The result of the last is_crowded().
  bool was_crowded() const { return was_crowded_.load(std::memory_order_relaxed); }
  // Frees the chunks of the previous epoch. False while the ring is frozen.
  bool free_last_epoch();

 private:
  // Chunks that entries are written into one after the other.
  struct Chain {
    std::vector<ChunkHeader*> chunks;
    RecordingFile::Chunk last;
    uint64_t taken_bytes = 0;  // by all chunks so far
    uint64_t used_bytes = 0;   // of them
  };
  // What has been interned, by content.
  struct Known {
    std::unordered_map<std::string, uint32_t, TextHash, std::equal_to<>> strings;
    std::unordered_map<uint64_t, uint32_t> names;  // (string, overload)
    std::unordered_map<std::string, uint32_t, TextHash, std::equal_to<>> frames;
    std::unordered_map<uint64_t, uint32_t> stacks;  // (parent, frame)
    ProbingTable<TextKey> shapes;
    ProbingTable<SiteKey> sites;
  };
  // One entry in its chunk.
  struct Written {
    Entry type;
    uint32_t id;
    std::span<const std::byte> payload;
  };

  // False when there was no room for the entry.
  bool write(Entry type, std::initializer_list<uint32_t> numbers, std::string_view text = {});
  bool write_with_address(Entry type, std::initializer_list<uint32_t> numbers, uint64_t address,
                          std::string_view text = {});
  // Space for an entry of that payload at the end of the chain; nullptr (counted as a loss) if the disk or
  // the dictionary's share is full.
  std::byte* room_for(Entry type, size_t payload_bytes);
  // Bytes left for entries of that type.
  uint64_t left_for(Entry type) const;
  std::string_view cut(std::string_view text);

  // Room at the end of a chain that takes at most `most_bytes` in all; nullptr without.
  std::byte* room_in(Chain& chain, Entry type, size_t payload_bytes, uint64_t most_bytes, bool& limited);
  static void commit(Chain& chain, size_t payload_bytes);
  // Writes an entry again; false (and counted) when there is no room.
  bool copy_to(Chain& chain, const Written& entry);
  void count_lost(bool limited);
  // Requests a collection when enough was written since the last one.
  void ask_for_collection(bool limited);
  void plan_next_collection();

  static std::vector<Written> entries_in(const Extent& extent);
  // Adds what the needed entries refer to, and those for which `stays` is true.
  static void add_references(const std::vector<Written>& entries, NeededIds& needed,
                             const std::function<bool(const Written&)>& stays);
  static bool is_needed(const NeededIds& needed, const Written& entry);
  // Adds an entry that was written again.
  static void know(Known& known, const Written& entry);
  // [with mutex()] Writes again, with their last values, what no collection drops: metadata, modules,
  // parameters, the threads that are needed, and those that came behind the first `seen` entries.
  void carry_lasting(size_t seen, const NeededIds& needed, uint32_t first_session);

  std::shared_ptr<RecordingFile> file_;
  std::mutex mutex_;
  Chain chain_;
  Known known_;
  uint32_t strings_ = 0;
  uint32_t names_ = 0;
  uint32_t frames_ = 0;
  uint32_t stacks_ = 0;
  uint32_t shapes_ = 0;
  uint32_t sites_ = 0;
  uint32_t modules_ = 0;
  uint32_t parameters_ = 0;

  std::atomic<uint32_t> epoch_{0};
  std::atomic<bool> due_{false};
  std::atomic<bool> nearly_full_{false};
  std::atomic<bool> was_crowded_{false};
  // Of the chain's bytes.
  static constexpr uint64_t kNever = UINT64_MAX;
  uint64_t due_at_bytes_ = 0;
  uint64_t nearly_full_at_bytes_ = 0;

  std::mutex collecting_;  // guards those below
  std::vector<ChunkHeader*> last_epoch_;
  bool ended_ = false;
};

}  // namespace kinetoscope
