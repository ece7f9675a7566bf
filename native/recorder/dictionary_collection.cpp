#include "dictionary_collection.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <vector>

#include "clock.h"
#include "dictionary.h"
#include "live.h"
#include "recording_file.h"
#include "session.h"
#include "thread_state.h"

namespace kinetoscope {
namespace {

std::atomic<void (*)()> sampler_wait{nullptr};

// Entries copied at once; in between, the mutex is released for threads with new names.
constexpr size_t kCopiedAtOnce = 64;

uint32_t number_at(std::span<const std::byte> payload, size_t place) {
  uint32_t number = 0;
  if ((place + 1) * sizeof(number) <= payload.size())
    std::memcpy(&number, payload.data() + place * sizeof(number), sizeof(number));
  return number;
}

std::string_view text_from(std::span<const std::byte> payload, size_t first) {
  first = std::min(first, payload.size());
  return {reinterpret_cast<const char*>(payload.data()) + first, payload.size() - first};
}

uint64_t pair_of(std::span<const std::byte> payload) {
  return (uint64_t{number_at(payload, 1)} << 32) | number_at(payload, 2);
}

// The number of the session whose metadata this key is; UINT32_MAX of what belongs to none, or to the first
// one.
uint32_t session_of(std::string_view key) {
  if (!key.starts_with(kSessionKey)) return UINT32_MAX;
  key.remove_prefix(kSessionKey.size());
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
  const bool whole = end == key.data() + key.size() || *end == '.';
  return error == std::errc{} && whole && number != 0 ? number : UINT32_MAX;
}

// Whether a collection keeps all entries of a type, with their last values.
bool is_lasting(Entry type) {
  return type == Entry::Module || type == Entry::ModuleName || type == Entry::Parameter ||
         type == Entry::Thread || type == Entry::Info;
}

void add(IdSet& ids, uint32_t id) {
  if (id != 0 && id != kUnknownId) ids.insert(id);
}

// The set of needed ids of a type; null for types that are always kept.
template <typename Needed>
auto* set_of(Needed& needed, Entry type) {
  switch (type) {
    case Entry::String:
      return &needed.strings;
    case Entry::Name:
      return &needed.names;
    case Entry::Frame:
      return &needed.frames;
    case Entry::Stack:
      return &needed.stacks;
    case Entry::Shapes:
      return &needed.shapes;
    case Entry::Site:
      return &needed.sites;
    default:
      return decltype(&needed.strings){nullptr};
  }
}

// Not copied as a whole: its end may be written concurrently.
void add_ids_of(const CompactSpan& span, NeededIds& needed) {
  add(needed.sites, __atomic_load_n(&span.site, __ATOMIC_RELAXED));
}

void add_ids_of(const NoteRecord& note, NeededIds& needed) {
  const auto kind = static_cast<NoteKind>(note.kind);
  if (kind == NoteKind::BetweenRanks || kind == NoteKind::Arguments)
    add(needed.strings, static_cast<uint32_t>(note.value));
}

void add_ids_of(const SampleRecord& sample, NeededIds& needed) {
  add(needed.stacks, sample.stack);
  add(needed.threads, sample.thread);
}

void add_ids_of(const AllocationRecord& allocation, NeededIds& needed) {
  add(needed.stacks, allocation.stack);
}

template <typename Record>
void add_ids_of_all(const ChunkHeader& chunk, uint64_t records, NeededIds& needed) {
  const auto* record = reinterpret_cast<const Record*>(&chunk + 1);
  for (uint64_t at = 0; at < records; ++at) add_ids_of(record[at], needed);
}

}  // namespace

void add_ids_in_records(RecordingFile& file, NeededIds& needed) {
  file.for_each_chunk([&needed](const ChunkHeader& chunk, uint64_t records) {
    add(needed.threads, chunk.thread);
    switch (static_cast<ChunkKind>(chunk.kind)) {
      case ChunkKind::Spans:
        return add_ids_of_all<CompactSpan>(chunk, records, needed);
      case ChunkKind::Notes:
        return add_ids_of_all<NoteRecord>(chunk, records, needed);
      case ChunkKind::Samples:
        return add_ids_of_all<SampleRecord>(chunk, records, needed);
      case ChunkKind::Allocations:
        return add_ids_of_all<AllocationRecord>(chunk, records, needed);
      default:
        return;
    }
  });
}

namespace {

// [with collecting()] One collection, or the rest of one that timed out; false if it is not complete.
bool collect(Session& session, int64_t patience_ns) {
  Dictionary& dictionary = session.dictionary();
  if (!dictionary.has_last_epoch()) {
    if (session.file().is_frozen()) return false;
    const Dictionary::Extent seen = dictionary.extent();
    // Threads before records: a thread that ends in between has its records in the file.
    NeededIds needed;
    session.add_living_threads(needed.threads);
    add_ids_in_records(session.file(), needed);
    dictionary.begin_epoch(seen, std::move(needed), session.first_session());
  }
  if (auto* wait = sampler_wait.load(std::memory_order_acquire)) wait();
  if (!wait_until_idle(patience_ns)) return false;
  NeededIds needed;
  add_ids_in_records(session.file(), needed);
  for_each_thread([&needed](ThreadState& thread) {
    add(needed.strings, thread.arguments.load(std::memory_order_relaxed));
  });
  dictionary.carry_rest(std::move(needed));
  return dictionary.free_last_epoch();
}

}  // namespace

bool collect_dictionary(Session& session, int64_t patience_ns) {
  Dictionary& dictionary = session.dictionary();
  const int64_t give_up = read_clock(CLOCK_MONOTONIC) + patience_ns;
  std::unique_lock only(dictionary.collecting(), std::try_to_lock);
  while (!only.owns_lock()) {
    if (read_clock(CLOCK_MONOTONIC) > give_up) return false;
    sched_yield();
    static_cast<void>(only.try_lock());
  }
  if (dictionary.has_ended()) return true;
  // Another thread may have done so already.
  if (!dictionary.has_last_epoch() && !dictionary.asks_for_collection()) return true;
  if (!collect(session, patience_ns)) return false;
  if (!dictionary.is_crowded()) return true;
  // Now, because there would be no space for names before the next collection.
  session.file().recycle_a_quarter();
  return collect(session, patience_ns);
}

void wait_for_sampler(void (*wait)()) { sampler_wait.store(wait, std::memory_order_release); }

// ------------------------------------------------------------------------------------ the dictionary's parts

Dictionary::Extent Dictionary::extent() {
  std::lock_guard lock(mutex_);
  Extent seen;
  for (const ChunkHeader* chunk : chain_.chunks) seen.emplace_back(chunk, chunk->committed);
  return seen;
}

std::vector<Dictionary::Written> Dictionary::entries_in(const Extent& extent) {
  std::vector<Written> entries;
  for (const auto& [chunk, bytes] : extent) {
    std::span<const std::byte> rest(reinterpret_cast<const std::byte*>(chunk + 1), bytes);
    while (rest.size() >= sizeof(EntryHeader)) {
      EntryHeader header;
      std::memcpy(&header, rest.data(), sizeof(header));
      rest = rest.subspan(sizeof(header));
      // A truncated file reads as zeros.
      if (header.type == 0 || header.bytes > rest.size()) break;
      const std::span<const std::byte> payload = rest.first(header.bytes);
      entries.push_back({static_cast<Entry>(header.type), number_at(payload, 0), payload});
      rest = rest.subspan(std::min<size_t>((size_t{header.bytes} + 7) & ~size_t{7}, rest.size()));
    }
  }
  return entries;
}

bool Dictionary::is_needed(const NeededIds& needed, const Written& entry) {
  const IdSet* ids = set_of(needed, entry.type);
  return ids != nullptr && ids->contains(entry.id);
}

void Dictionary::add_references(const std::vector<Written>& entries, NeededIds& needed,
                                const std::function<bool(const Written&)>& stays) {
  std::vector<const Written*> stacks, frames, others;
  for (const Written& entry : entries) {
    if (entry.type == Entry::Site && (needed.sites.contains(entry.id) || stays(entry))) {
      add(needed.names, number_at(entry.payload, 1));
      add(needed.stacks, number_at(entry.payload, 2));
      add(needed.shapes, number_at(entry.payload, 3));
    }
  }
  for (const Written& entry : entries) {
    (entry.type == Entry::Stack ? stacks : entry.type == Entry::Frame ? frames : others).push_back(&entry);
  }
  // A stack has a higher id than its parents.
  std::sort(stacks.begin(), stacks.end(),
            [](const Written* one, const Written* other) { return one->id > other->id; });
  for (const Written* stack : stacks) {
    if (!needed.stacks.contains(stack->id) && !stays(*stack)) continue;
    add(needed.stacks, number_at(stack->payload, 1));
    add(needed.frames, number_at(stack->payload, 2));
  }
  for (const Written* frame : frames) {
    if (!needed.frames.contains(frame->id) && !stays(*frame)) continue;
    add(needed.strings, number_at(frame->payload, 1));
    add(needed.strings, number_at(frame->payload, 2));
  }
  for (const Written* entry : others) {
    if (!is_needed(needed, *entry) && !is_lasting(entry->type) && !stays(*entry)) continue;
    switch (entry->type) {
      case Entry::Name:
        add(needed.strings, number_at(entry->payload, 1));
        add(needed.strings, number_at(entry->payload, 2));
        break;
      case Entry::Module:
        add(needed.strings, number_at(entry->payload, 1));
        break;
      case Entry::ModuleName:
      case Entry::Parameter:
        add(needed.strings, number_at(entry->payload, 2));
        break;
      default:
        break;
    }
  }
}

void Dictionary::know(Known& known, const Written& entry) {
  switch (entry.type) {
    case Entry::String:
      known.strings.emplace(text_from(entry.payload, sizeof(uint32_t)), entry.id);
      break;
    case Entry::Name:
      known.names.emplace(pair_of(entry.payload), entry.id);
      break;
    case Entry::Frame:
      known.frames.emplace(text_from(entry.payload, sizeof(uint32_t)), entry.id);
      break;
    case Entry::Stack:
      known.stacks.emplace(pair_of(entry.payload), entry.id);
      break;
    case Entry::Site: {
      SiteKey site;
      if (entry.payload.size() < sizeof(uint32_t) + sizeof(SpanSite)) break;
      std::memcpy(static_cast<SpanSite*>(&site), entry.payload.data() + sizeof(uint32_t), sizeof(SpanSite));
      known.sites.insert(site, entry.id);
      break;
    }
    default:
      break;
  }
}

bool Dictionary::copy_to(Chain& chain, const Written& entry) {
  bool limited = false;
  std::byte* at = room_in(chain, entry.type, entry.payload.size(), file_->dictionary_bytes(), limited);
  if (at == nullptr) {
    count_lost(limited);
    return false;
  }
  if (!entry.payload.empty()) std::memcpy(at, entry.payload.data(), entry.payload.size());
  commit(chain, entry.payload.size());
  return true;
}

void Dictionary::begin_epoch(const Extent& seen, NeededIds needed, uint32_t first_session) {
  const std::vector<Written> entries = entries_in(seen);
  add_references(entries, needed, [](const Written&) { return false; });
  Chain next;
  Known known;
  for (const Written& entry : entries) {
    if (is_needed(needed, entry) && copy_to(next, entry)) know(known, entry);
  }
  std::lock_guard lock(mutex_);
  known_.shapes.for_each([&](const TextKey& key, uint32_t id) {
    if (needed.shapes.contains(id)) known.shapes.insert(key, id);
  });
  last_epoch_ = std::move(chain_.chunks);
  chain_ = std::move(next);
  known_ = std::move(known);
  carry_lasting(entries.size(), needed, first_session);
  plan_next_collection();
  due_.store(false, std::memory_order_relaxed);
  nearly_full_.store(false, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  // A thread that sees this has seen the epoch.
  live.orphans_posted.fetch_add(1, std::memory_order_release);
}

void Dictionary::carry_lasting(size_t seen, const NeededIds& needed, uint32_t first_session) {
  Extent all;
  for (const ChunkHeader* chunk : last_epoch_) all.emplace_back(chunk, chunk->committed);
  const std::vector<Written> entries = entries_in(all);
  std::map<std::tuple<Entry, uint32_t, std::string_view>, const Written*> last;
  for (size_t at = 0; at < entries.size(); ++at) {
    const Written& entry = entries[at];
    if (!is_lasting(entry.type)) continue;
    if (entry.type == Entry::Thread && at < seen && !needed.threads.contains(entry.id)) continue;
    // The first number of metadata is the length of its key.
    const bool keyed = entry.type == Entry::Info;
    const std::string_view key =
        keyed ? text_from(entry.payload, sizeof(uint32_t)).substr(0, entry.id) : std::string_view{};
    if (keyed && session_of(key) < first_session) continue;
    last[{entry.type, keyed ? 0 : entry.id, key}] = &entry;
  }
  for (const auto& [key, entry] : last) copy_to(chain_, *entry);
}

void Dictionary::carry_rest(NeededIds needed) {
  const std::vector<Written> there = entries_in(extent());
  NeededIds written;
  for (const Written& entry : there) {
    if (IdSet* ids = set_of(written, entry.type)) ids->insert(entry.id);
  }
  Extent before;
  for (const ChunkHeader* chunk : last_epoch_) before.emplace_back(chunk, chunk->committed);
  std::vector<Written> entries = entries_in(before);
  // What the new epoch has may refer to what only the one before has.
  const size_t old = entries.size();
  entries.insert(entries.end(), there.begin(), there.end());
  add_references(entries, needed, [&written](const Written& entry) {
    const IdSet* ids = set_of(written, entry.type);
    return ids != nullptr && ids->contains(entry.id);
  });
  entries.resize(old);
  std::erase_if(entries,
                [&](const Written& entry) { return !is_needed(needed, entry) || is_needed(written, entry); });
  for (size_t first = 0; first < entries.size(); first += kCopiedAtOnce) {
    std::lock_guard lock(mutex_);
    for (size_t at = first; at < std::min(first + kCopiedAtOnce, entries.size()); ++at)
      copy_to(chain_, entries[at]);
  }
  std::lock_guard lock(mutex_);
  plan_next_collection();
}

void Dictionary::end_collections() {
  std::lock_guard only(collecting_);
  ended_ = true;
  std::lock_guard lock(mutex_);
  due_.store(false, std::memory_order_relaxed);
  due_at_bytes_ = nearly_full_at_bytes_ = kNever;
}

bool Dictionary::is_crowded() {
  std::lock_guard lock(mutex_);
  const bool crowded = left_for(Entry::Name) < chain_.used_bytes;
  was_crowded_.store(crowded, std::memory_order_relaxed);
  return crowded;
}

bool Dictionary::free_last_epoch() {
  if (!file_->free_dictionary(last_epoch_)) return false;
  last_epoch_.clear();
  return true;
}

}  // namespace kinetoscope
