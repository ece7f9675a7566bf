#include "dense_ids.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kinetoscope {
namespace {

using Bytes = std::span<const std::byte>;

// No table is so long.
constexpr uint32_t kNoEntry = kUnknownId - 1;

// Entries of the types that are not here keep their ids: nothing of theirs is ever dropped, or they are
// looked up by a number that need not be dense.
enum Table : std::size_t { kStrings, kNames, kFrames, kStacks, kShapes, kSites, kTables };

// How many numbers at the front of an entry are ids, and of which tables; kTables: no id of these.
struct References {
  Table own = kTables;
  Table others[3] = {kTables, kTables, kTables};
};

References references_of(Entry type) {
  switch (type) {
    case Entry::String:
      return {.own = kStrings};
    case Entry::Name:
      return {kNames, {kStrings, kStrings, kTables}};
    case Entry::Frame:
      return {kFrames, {kStrings, kStrings, kTables}};
    case Entry::Stack:
      return {kStacks, {kStacks, kFrames, kTables}};
    case Entry::Shapes:
      return {.own = kShapes};
    case Entry::Site:
      return {kSites, {kNames, kStacks, kShapes}};
    case Entry::Module:
      return {kTables, {kStrings, kTables, kTables}};
    case Entry::ModuleName:
    case Entry::Parameter:
      return {kTables, {kTables, kStrings, kTables}};
    default:
      return References{};
  }
}

// The new ids of a table by its old ones.
class Renumbering {
 public:
  void add(uint32_t id, uint32_t dense) { dense_.emplace(id, dense); }
  bool has(uint32_t id) const { return dense_.contains(id); }
  uint32_t operator[](uint32_t id) const {
    if (id == 0 || id == kUnknownId) return id;
    const auto found = dense_.find(id);
    return found == dense_.end() ? kNoEntry : found->second;
  }

 private:
  std::unordered_map<uint32_t, uint32_t> dense_;
};

struct Found {
  Entry type;
  std::string payload;
  uint32_t number(std::size_t place) const {
    uint32_t number = 0;
    if ((place + 1) * sizeof(number) <= payload.size())
      std::memcpy(&number, payload.data() + place * sizeof(number), sizeof(number));
    return number;
  }
  void set_number(std::size_t place, uint32_t number) {
    if ((place + 1) * sizeof(number) <= payload.size())
      std::memcpy(payload.data() + place * sizeof(number), &number, sizeof(number));
  }
};

// The entries of some chunks; what is damaged ends its chunk, and is passed on to whoever reads it.
std::vector<Found> entries_of(std::span<const Bytes> chunks, std::vector<Bytes>& damaged) {
  std::vector<Found> entries;
  for (Bytes rest : chunks) {
    while (!rest.empty()) {
      EntryHeader header{};
      if (rest.size() >= sizeof(header)) std::memcpy(&header, rest.data(), sizeof(header));
      if (rest.size() < sizeof(header) || header.bytes > rest.size() - sizeof(header)) {
        damaged.push_back(rest);
        break;
      }
      rest = rest.subspan(sizeof(header));
      entries.push_back({static_cast<Entry>(header.type),
                         std::string(reinterpret_cast<const char*>(rest.data()), header.bytes)});
      rest = rest.subspan(std::min((std::size_t{header.bytes} + 7) / 8 * 8, rest.size()));
    }
  }
  return entries;
}

void append_entry(std::vector<std::byte>& bytes, const Found& entry) {
  const EntryHeader header{static_cast<uint32_t>(entry.type), static_cast<uint32_t>(entry.payload.size())};
  const std::size_t at = bytes.size();
  bytes.resize(at + sizeof(header) + (entry.payload.size() + 7) / 8 * 8);
  std::memcpy(bytes.data() + at, &header, sizeof(header));
  if (!entry.payload.empty())
    std::memcpy(bytes.data() + at + sizeof(header), entry.payload.data(), entry.payload.size());
}

class DenseIds {
 public:
  explicit DenseIds(ChunkList& list) : list_(list) {}

  void run() {
    std::vector<Bytes> damaged;
    std::vector<Found> entries = entries_of(list_.dictionary, damaged);
    number(entries);
    std::vector<std::byte> bytes;
    for (Found& entry : entries) {
      if (references_of(entry.type).own != kTables) continue;
      renumber(entry);
      append_entry(bytes, entry);
    }
    for (const Found& entry : dense_) append_entry(bytes, entry);
    const std::vector<std::byte>& kept = list_.copies.emplace_back(std::move(bytes));
    list_.dictionary.assign(1, Bytes(kept));
    list_.dictionary.insert(list_.dictionary.end(), damaged.begin(), damaged.end());

    // Only versions since 7 have collections.
    renumber_all<CompactSpan>(list_.spans,
                              [this](CompactSpan& span) { span.site = ids_[kSites][span.site]; });
    renumber_all<AllocationRecord>(list_.allocations, [this](AllocationRecord& allocation) {
      allocation.stack = ids_[kStacks][allocation.stack];
    });
    renumber_all<SampleRecord>(list_.samples,
                               [this](SampleRecord& sample) { sample.stack = ids_[kStacks][sample.stack]; });
    renumber_all<NoteRecord>(list_.notes, [this](NoteRecord& note) {
      const auto kind = static_cast<NoteKind>(note.kind);
      if (kind == NoteKind::BetweenRanks || kind == NoteKind::Arguments) note.value = text_of(note.value);
    });
  }

 private:
  // Table by table, so that what an entry refers to has its new id before.
  void number(const std::vector<Found>& entries) {
    std::vector<const Found*> of_table[kTables];
    for (const Found& entry : entries) {
      if (const Table own = references_of(entry.type).own; own != kTables) of_table[own].push_back(&entry);
    }
    for (std::size_t table = 0; table < kTables; ++table) {
      std::vector<const Found*>& own = of_table[table];
      std::stable_sort(own.begin(), own.end(), [](const Found* one, const Found* other) {
        return one->number(0) < other->number(0);
      });
      std::unordered_map<std::string, uint32_t> by_content;
      for (const Found* entry : own) {
        if (ids_[table].has(entry->number(0))) continue;
        Found dense = *entry;
        renumber(dense);
        const auto [known, fresh] =
            by_content.try_emplace(dense.payload.substr(std::min(sizeof(uint32_t), dense.payload.size())),
                                   static_cast<uint32_t>(by_content.size() + 1));
        ids_[table].add(entry->number(0), known->second);
        if (!fresh) continue;
        dense.set_number(0, known->second);
        dense_.push_back(std::move(dense));
      }
    }
  }

  // A text that is not there is none.
  uint32_t text_of(uint64_t value) const {
    const uint32_t id = ids_[kStrings][static_cast<uint32_t>(value)];
    return id == kNoEntry ? 0 : id;
  }

  // What an entry refers to.
  void renumber(Found& entry) const {
    const References references = references_of(entry.type);
    for (std::size_t place = 0; place < std::size(references.others); ++place) {
      if (const Table table = references.others[place]; table != kTables)
        entry.set_number(place + 1, ids_[table][entry.number(place + 1)]);
    }
  }

  template <typename Record, typename Renumber>
  void renumber_all(std::vector<RecordChunk>& chunks, Renumber change) {
    for (RecordChunk& chunk : chunks) {
      std::vector<std::byte> copy(chunk.records * sizeof(Record));
      for (std::size_t at = 0; at < copy.size(); at += sizeof(Record)) {
        Record record;
        if constexpr (std::is_same_v<Record, CompactSpan>) {
          record = load_compact(chunk.payload + at);
        } else {
          std::memcpy(&record, chunk.payload + at, sizeof(record));
        }
        change(record);
        std::memcpy(copy.data() + at, &record, sizeof(record));
      }
      chunk.payload = list_.copies.emplace_back(std::move(copy)).data();
    }
  }

  ChunkList& list_;
  Renumbering ids_[kTables];
  std::vector<Found> dense_;
};

}  // namespace

void make_ids_dense(ChunkList& list) { DenseIds(list).run(); }

}  // namespace kinetoscope
