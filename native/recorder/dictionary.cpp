#include "dictionary.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace kinetoscope {
namespace {

uint64_t pair_key(uint32_t high, uint32_t low) { return (uint64_t{high} << 32) | low; }

size_t padded(size_t bytes) { return (bytes + 7) & ~size_t{7}; }

}  // namespace

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
  if (type == Entry::Shapes) share = all / 2;
  if (type == Entry::String || type == Entry::Name || type == Entry::Frame || type == Entry::Stack)
    share = all / 4 * 3;
  return share - std::min(share, used_bytes_);
}

std::byte* Dictionary::room_for(Entry type, size_t payload_bytes) {
  const size_t needed = sizeof(EntryHeader) + padded(payload_bytes);
  bool limited = needed > left_for(type);
  RecordingFile::Chunk room = limited ? RecordingFile::Chunk{} : chunk_;
  if (!limited && (room.header == nullptr || room.header->committed + needed > room.payload_bytes)) {
    const uint64_t all = file_->dictionary_bytes(), left = all - std::min(all, taken_bytes_);
    limited = needed + sizeof(ChunkHeader) > left;
    // A chunk is some times as long as the one before, and no longer than what is left.
    const size_t before = std::min<uint64_t>(chunk_.payload_bytes, left / 4);
    room = limited ? RecordingFile::Chunk{} : file_->take_chunk(ChunkKind::Dictionary, 0, before, needed);
    if (room.header != nullptr) {
      chunk_ = room;
      taken_bytes_ += room.payload_bytes + sizeof(ChunkHeader);
    }
  }
  if (room.header == nullptr) {
    FileHeader& head = file_->header();
    std::atomic_ref(limited ? head.limited_dictionary : head.dropped_dictionary)
        .fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  used_bytes_ += needed;
  std::byte* at = reinterpret_cast<std::byte*>(chunk_.header + 1) + chunk_.header->committed;
  const EntryHeader head{static_cast<uint32_t>(type), static_cast<uint32_t>(payload_bytes)};
  std::memcpy(at, &head, sizeof(head));
  return at + sizeof(head);
}

void Dictionary::commit(size_t payload_bytes) {
  std::atomic_ref(chunk_.header->committed)
      .store(chunk_.header->committed + sizeof(EntryHeader) + padded(payload_bytes),
             std::memory_order_release);
}

bool Dictionary::write(Entry type, std::initializer_list<uint32_t> numbers, std::string_view text) {
  const size_t bytes = numbers.size() * sizeof(uint32_t) + text.size();
  std::byte* at = room_for(type, bytes);
  if (at == nullptr) return false;
  std::memcpy(at, numbers.begin(), numbers.size() * sizeof(uint32_t));
  if (!text.empty()) std::memcpy(at + numbers.size() * sizeof(uint32_t), text.data(), text.size());
  commit(bytes);
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
  commit(bytes);
  return true;
}

uint32_t Dictionary::string(std::string_view text) {
  if (text.empty()) return 0;
  text = cut(text);
  if (const auto known = strings_.find(text); known != strings_.end()) return known->second;
  const auto id = static_cast<uint32_t>(strings_.size() + 1);
  if (!write(Entry::String, {id}, text)) return kUnknownId;
  strings_.emplace(text, id);
  return id;
}

uint32_t Dictionary::name(std::string_view name, std::string_view overload) {
  const uint32_t text = string(name);
  const uint32_t suffix = string(overload);
  if (text == kUnknownId) return kUnknownId;
  const uint64_t key = pair_key(text, suffix);
  if (const auto known = names_.find(key); known != names_.end()) return known->second;
  const auto id = static_cast<uint32_t>(names_.size() + 1);
  if (!write(Entry::Name, {id, text, suffix})) return kUnknownId;
  names_.emplace(key, id);
  return id;
}

uint32_t Dictionary::frame(std::string_view function, std::string_view filename, uint32_t line,
                           uint32_t first_line) {
  const uint32_t numbers[4] = {string(function), string(filename), line, first_line};
  const std::string_view key(reinterpret_cast<const char*>(numbers), sizeof(numbers));
  if (const auto known = frames_.find(key); known != frames_.end()) return known->second;
  const auto id = static_cast<uint32_t>(frames_.size() + 1);
  if (!write(Entry::Frame, {id, numbers[0], numbers[1], line, first_line})) return kUnknownId;
  frames_.emplace(key, id);
  return id;
}

uint32_t Dictionary::stack(uint32_t parent, uint32_t frame) {
  if (parent == kUnknownId || frame == kUnknownId) return kUnknownId;
  const uint64_t key = pair_key(parent, frame);
  if (const auto known = stacks_.find(key); known != stacks_.end()) return known->second;
  const auto id = static_cast<uint32_t>(stacks_.size() + 1);
  if (!write(Entry::Stack, {id, parent, frame})) return kUnknownId;
  stacks_.emplace(key, id);
  return id;
}

uint32_t Dictionary::find_shapes(const TextKey& key) {
  if (const uint32_t known = shapes_.find(key); known != 0) return known;
  // Whether there is room is only known for sure once their texts are made; here it is to save making them.
  if (left_for(Entry::Shapes) >= sizeof(EntryHeader) + 4 * sizeof(uint32_t)) return 0;
  std::atomic_ref(file_->header().limited_dictionary).fetch_add(1, std::memory_order_relaxed);
  return kUnknownId;
}

uint32_t Dictionary::shapes(const TextKey& key, std::string_view dims, std::string_view types,
                            std::string_view concrete, std::string_view strides) {
  const uint32_t id = shapes_count_ + 1;
  std::string text;
  text.reserve(dims.size() + types.size() + concrete.size() + strides.size());
  text.append(dims).append(types).append(concrete).append(strides);
  if (!write(Entry::Shapes,
             {id, static_cast<uint32_t>(dims.size()), static_cast<uint32_t>(types.size()),
              static_cast<uint32_t>(concrete.size())},
             text)) {
    return kUnknownId;
  }
  shapes_count_ = id;
  shapes_.insert(key, id);
  return id;
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
