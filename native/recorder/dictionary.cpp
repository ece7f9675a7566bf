#include "dictionary.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "live.h"
#include "maintenance_thread.h"

namespace kinetoscope {
namespace {

// Minimum size for a collection, unless the ring is small.
constexpr uint64_t kLeastCollectedBytes = uint64_t{1} << 20;
// Larger dictionaries are only collected by the helper thread.
constexpr uint64_t kMostCollectedByAnyBytes = uint64_t{8} << 20;

// The share of a dictionary for names, stacks, and entries that these refer to.
constexpr uint64_t share_of_names(uint64_t all) { return all / 4 * 3; }

uint64_t pair_key(uint32_t high, uint32_t low) { return (uint64_t{high} << 32) | low; }

size_t padded(size_t bytes) { return (bytes + 7) & ~size_t{7}; }

}  // namespace

Dictionary::Dictionary(std::shared_ptr<RecordingFile> file) : file_(std::move(file)) {
  plan_next_collection();
}

std::string_view Dictionary::cut(std::string_view text) {
  if (text.size() <= kMaxStringBytes) return text;
  std::atomic_ref(file_->header().truncated_strings).fetch_add(1, std::memory_order_relaxed);
  size_t end = kMaxStringBytes;
  // Not in the middle of a character.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

uint64_t Dictionary::left_for(Entry type) const {
  const uint64_t all = file_->dictionary_bytes();
  uint64_t share = all;
  // The collections of a ring make room for shapes, too, which leave a little of it to names in between.
  const bool collected = file_->frees_records();
  if (type == Entry::Shapes) share = collected ? share_of_names(all) : all / 2;
  if (type == Entry::String || type == Entry::Name || type == Entry::Frame || type == Entry::Stack)
    share = share_of_names(all) + (collected ? all / 16 : 0);
  return share - std::min(share, chain_.used_bytes);
}

std::byte* Dictionary::room_in(Chain& chain, Entry type, size_t payload_bytes, uint64_t most_bytes,
                               bool& limited) {
  const size_t needed = sizeof(EntryHeader) + padded(payload_bytes);
  RecordingFile::Chunk room = chain.last;
  if (room.header == nullptr || room.header->committed + needed > room.payload_bytes) {
    const uint64_t left = most_bytes - std::min(most_bytes, chain.taken_bytes);
    limited = needed + sizeof(ChunkHeader) > left;
    if (limited) return nullptr;
    // Each chunk is a multiple of the previous one, but at most the space that is left.
    const size_t before = std::min<uint64_t>(chain.last.payload_bytes, left / 4);
    room = file_->take_chunk(ChunkKind::Dictionary, 0, before, needed);
    if (room.header == nullptr) return nullptr;
    chain.last = room;
    chain.chunks.push_back(room.header);
    chain.taken_bytes += room.payload_bytes + sizeof(ChunkHeader);
  }
  chain.used_bytes += needed;
  std::byte* at = reinterpret_cast<std::byte*>(room.header + 1) + room.header->committed;
  const EntryHeader head{static_cast<uint32_t>(type), static_cast<uint32_t>(payload_bytes)};
  std::memcpy(at, &head, sizeof(head));
  return at + sizeof(head);
}

void Dictionary::count_lost(bool limited) {
  FileHeader& head = file_->header();
  std::atomic_ref(limited ? head.limited_dictionary : head.dropped_dictionary)
      .fetch_add(1, std::memory_order_relaxed);
}

std::byte* Dictionary::room_for(Entry type, size_t payload_bytes) {
  bool limited = sizeof(EntryHeader) + padded(payload_bytes) > left_for(type);
  std::byte* room =
      limited ? nullptr : room_in(chain_, type, payload_bytes, file_->dictionary_bytes(), limited);
  if (room == nullptr) count_lost(limited);
  ask_for_collection(limited);
  return room;
}

void Dictionary::commit(Chain& chain, size_t payload_bytes) {
  ChunkHeader* chunk = chain.last.header;
  std::atomic_ref(chunk->committed)
      .store(chunk->committed + sizeof(EntryHeader) + padded(payload_bytes), std::memory_order_release);
}

void Dictionary::ask_for_collection(bool limited) {
  if (due_at_bytes_ == kNever || !file_->frees_records()) return;
  if (!due_.load(std::memory_order_relaxed) && (limited || chain_.used_bytes > due_at_bytes_)) {
    due_.store(true, std::memory_order_relaxed);
    maintenance_thread::wake();
  }
  if (chain_.used_bytes > nearly_full_at_bytes_ && !nearly_full_.load(std::memory_order_relaxed)) {
    nearly_full_.store(true, std::memory_order_relaxed);
    // Every thread checks this counter before its next span.
    live.orphans_posted.fetch_add(1, std::memory_order_release);
  }
}

void Dictionary::plan_next_collection() {
  const uint64_t all = file_->dictionary_bytes(), share = share_of_names(all);
  const uint64_t used = std::min(chain_.used_bytes, share), left = share - used;
  // Most entries that are needed now will be needed later, too: the next collection is due when as much was
  // added.
  const uint64_t worth_it = std::max(used, std::min(all / 4, kLeastCollectedBytes));
  due_at_bytes_ = used + std::min(worth_it, left / 2);
  // For a large ring the helper thread is in time, and a collection would take too long on any other thread.
  const bool by_any = all <= kMostCollectedByAnyBytes && left > all / 16;
  nearly_full_at_bytes_ = by_any ? due_at_bytes_ + (share - due_at_bytes_) / 4 : kNever;
}

bool Dictionary::write(Entry type, std::initializer_list<uint32_t> numbers, std::string_view text) {
  const size_t bytes = numbers.size() * sizeof(uint32_t) + text.size();
  std::byte* at = room_for(type, bytes);
  if (at == nullptr) return false;
  std::memcpy(at, numbers.begin(), numbers.size() * sizeof(uint32_t));
  if (!text.empty()) std::memcpy(at + numbers.size() * sizeof(uint32_t), text.data(), text.size());
  commit(chain_, bytes);
  return true;
}

bool Dictionary::write_with_address(Entry type, std::initializer_list<uint32_t> numbers, uint64_t address,
                                    std::string_view text) {
  const size_t fixed = numbers.size() * sizeof(uint32_t);
  const size_t bytes = fixed + sizeof(address) + text.size();
  std::byte* at = room_for(type, bytes);
  if (at == nullptr) return false;
  std::memcpy(at, numbers.begin(), fixed);
  std::memcpy(at + fixed, &address, sizeof(address));
  if (!text.empty()) std::memcpy(at + fixed + sizeof(address), text.data(), text.size());
  commit(chain_, bytes);
  return true;
}

uint32_t Dictionary::string(std::string_view text) {
  if (text.empty()) return 0;
  text = cut(text);
  if (const auto known = known_.strings.find(text); known != known_.strings.end()) return known->second;
  const uint32_t id = strings_ + 1;
  if (id >= kUnknownId || !write(Entry::String, {id}, text)) return kUnknownId;
  strings_ = id;
  known_.strings.emplace(text, id);
  return id;
}

uint32_t Dictionary::name(std::string_view name, std::string_view overload) {
  const uint32_t text = string(name);
  const uint32_t suffix = string(overload);
  if (text == kUnknownId) return kUnknownId;
  const uint64_t key = pair_key(text, suffix);
  if (const auto known = known_.names.find(key); known != known_.names.end()) return known->second;
  const uint32_t id = names_ + 1;
  if (!write(Entry::Name, {id, text, suffix})) return kUnknownId;
  names_ = id;
  known_.names.emplace(key, id);
  return id;
}

uint32_t Dictionary::frame(std::string_view function, std::string_view filename, uint32_t line,
                           uint32_t first_line) {
  const uint32_t numbers[4] = {string(function), string(filename), line, first_line};
  const std::string_view key(reinterpret_cast<const char*>(numbers), sizeof(numbers));
  if (const auto known = known_.frames.find(key); known != known_.frames.end()) return known->second;
  const uint32_t id = frames_ + 1;
  if (!write(Entry::Frame, {id, numbers[0], numbers[1], line, first_line})) return kUnknownId;
  frames_ = id;
  known_.frames.emplace(key, id);
  return id;
}

uint32_t Dictionary::stack(uint32_t parent, uint32_t frame) {
  if (parent == kUnknownId || frame == kUnknownId) return kUnknownId;
  const uint64_t key = pair_key(parent, frame);
  if (const auto known = known_.stacks.find(key); known != known_.stacks.end()) return known->second;
  const uint32_t id = stacks_ + 1;
  if (!write(Entry::Stack, {id, parent, frame})) return kUnknownId;
  stacks_ = id;
  known_.stacks.emplace(key, id);
  return id;
}

uint32_t Dictionary::find_shapes(const TextKey& key) {
  if (const uint32_t known = known_.shapes.find(key); known != 0) return known;
  // Only a first check, to avoid building the texts; whether there is space is only known with them.
  if (left_for(Entry::Shapes) >= sizeof(EntryHeader) + 4 * sizeof(uint32_t)) return 0;
  std::atomic_ref(file_->header().limited_dictionary).fetch_add(1, std::memory_order_relaxed);
  return kUnknownId;
}

uint32_t Dictionary::shapes(const TextKey& key, std::string_view dims, std::string_view types,
                            std::string_view concrete, std::string_view strides) {
  const uint32_t id = shapes_ + 1;
  if (id >= kUnknownId) return kUnknownId;
  std::string text;
  text.reserve(dims.size() + types.size() + concrete.size() + strides.size());
  text.append(dims).append(types).append(concrete).append(strides);
  if (!write(Entry::Shapes,
             {id, static_cast<uint32_t>(dims.size()), static_cast<uint32_t>(types.size()),
              static_cast<uint32_t>(concrete.size())},
             text)) {
    return kUnknownId;
  }
  shapes_ = id;
  known_.shapes.insert(key, id);
  return id;
}

uint32_t Dictionary::site(SpanSite site) {
  if (const uint32_t known = known_.sites.find({site}); known != 0) return known;
  const uint32_t id = sites_ + 1;
  const bool shaped = site.shapes != 0 && site.shapes != kUnknownId;
  const size_t bytes = sizeof(EntryHeader) + padded(sizeof(id) + sizeof(site));
  const bool fits = !shaped || left_for(Entry::Shapes) >= bytes;
  if (fits && id < kUnknownId &&
      write(Entry::Site,
            {id, site.name, site.stack, site.shapes, site.module, site.parameter, site.scope_and_sequence})) {
    sites_ = id;
    known_.sites.insert({site}, id);
    return id;
  }
  if (!shaped) return kUnknownId;
  if (!fits) count_lost(true);
  site.shapes = kUnknownId;
  return this->site(site);
}

uint32_t Dictionary::new_module(std::string_view class_name, uint32_t caller, uint64_t address) {
  const uint32_t id = ++modules_;
  write_with_address(Entry::Module, {id, string(class_name), caller, 0}, address);
  return id;
}

void Dictionary::name_module(uint32_t module, uint32_t parent, std::string_view attribute) {
  write(Entry::ModuleName, {module, parent, string(attribute)});
}

uint32_t Dictionary::new_parameter(uint64_t address) {
  const uint32_t id = ++parameters_;
  write_with_address(Entry::Parameter, {id, 0, 0, 0}, address);
  return id;
}

void Dictionary::place_parameter(uint32_t parameter, uint64_t address, uint32_t module,
                                 std::string_view name) {
  write_with_address(Entry::Parameter, {parameter, module, string(name), 0}, address);
}

void Dictionary::thread(uint32_t index, uint32_t os_thread, uint64_t torch_thread, std::string_view name) {
  write_with_address(Entry::Thread, {index, os_thread}, torch_thread, name);
}

void Dictionary::info(std::string_view key, std::string_view json) {
  std::string text;
  text.append(key).append(json);
  write(Entry::Info, {static_cast<uint32_t>(key.size())}, text);
}

}  // namespace kinetoscope
