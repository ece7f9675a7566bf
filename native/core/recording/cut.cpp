#include "cut.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <set>
#include <system_error>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "../spans/linking.h"
#include "chunks.h"
#include "clock.h"
#include "reader.h"
#include "sessions.h"

namespace kinetoscope {
namespace {

constexpr std::size_t kPositionNumbers = sizeof(RecordingPosition) / sizeof(uint64_t);
constexpr std::size_t kMostPayloadBytes = std::size_t{1} << 18;
// The table of what was compiled, which is of the whole recording.
constexpr std::string_view kCompiling = "compiling";

constexpr std::string_view kFirstStep = "first_step";

// Whether metadata is what the recorder states of its samples.
bool is_of_samples(std::string_view key) { return key == "sample_interval_ns" || key == "samples_missing"; }

// Writes a recording's file: chunks one after the other, and the header last.
class RecordingWriter {
 public:
  explicit RecordingWriter(const std::string& path) : file_(std::fopen(path.c_str(), "wbx"), &std::fclose) {
    if (file_ == nullptr) fail();
    const std::vector<std::byte> header(kHeaderBytes);
    write(header.data(), header.size());
  }

  // Appends to the chunk of this kind and thread, or begins it; `committed` is what the bytes add to
  // ChunkHeader::committed.
  void add(ChunkKind kind, uint32_t thread, const void* bytes, std::size_t size, uint64_t committed) {
    if (kind != kind_ || thread != thread_ || payload_.size() + size > kMostPayloadBytes) finish_chunk();
    kind_ = kind;
    thread_ = thread;
    committed_ += committed;
    const auto* first = static_cast<const std::byte*>(bytes);
    payload_.insert(payload_.end(), first, first + size);
  }

  void add_span(uint32_t thread, const SpanRecord& span) {
    const SpanSite site = site_of(span);
    const auto [known, fresh] = sites_.try_emplace(key_of(site), static_cast<uint32_t>(sites_.size() + 1));
    if (fresh) new_sites_.push_back(site);
    const CompactSpan record = compact(span, known->second);
    add(ChunkKind::Spans, thread, &record, sizeof(record), 1);
  }

  // The sites of all spans so far, to the dictionary.
  void add_sites() {
    uint32_t id = 0;
    for (const SpanSite& site : new_sites_) {
      std::string entry(reinterpret_cast<const char*>(&++id), sizeof(id));
      add_entry(Entry::Site, entry.append(key_of(site)));
    }
  }

  // An entry of the dictionary.
  void add_entry(Entry type, std::string_view text) {
    const EntryHeader header{static_cast<uint32_t>(type), static_cast<uint32_t>(text.size())};
    std::vector<std::byte> bytes(sizeof(header) + (text.size() + 7) / 8 * 8);
    std::memcpy(bytes.data(), &header, sizeof(header));
    if (!text.empty()) std::memcpy(bytes.data() + sizeof(header), text.data(), text.size());
    add(ChunkKind::Dictionary, 0, bytes.data(), bytes.size(), bytes.size());
  }

  // Ends the file; `header` says what it is besides its chunks.
  void finish(FileHeader header) {
    finish_chunk();
    header.version = kVersion;
    header.chunk_bytes = kUnitBytes;
    header.chunks = units_;
    header.orders = order_;
    header.recycled_chunks = 0;
    header.dictionary_collections = 0;
    header.chain = chain_;
    header.checksum = 0;
    header.checksum = header_checksum(header);
    if (std::fseek(file_.get(), 0, SEEK_SET) != 0) fail();
    write(&header, sizeof(header));
    std::FILE* file = file_.release();
    if (std::fclose(file) != 0) fail();
  }

 private:
  [[noreturn]] static void fail() { throw std::system_error(errno, std::generic_category()); }

  static std::string key_of(const SpanSite& site) {
    return {reinterpret_cast<const char*>(&site), sizeof(site)};
  }

  void write(const void* bytes, std::size_t size) {
    if (std::fwrite(bytes, 1, size, file_.get()) != size) fail();
  }

  void finish_chunk() {
    if (payload_.empty()) return;
    const std::size_t bytes = sizeof(ChunkHeader) + payload_.size();
    const std::size_t units = (bytes + kUnitBytes - 1) / kUnitBytes;
    ChunkHeader header{};
    header.magic = kChunkMagic;
    header.kind = static_cast<uint32_t>(kind_);
    header.thread = thread_;
    header.units = static_cast<uint32_t>(units);
    header.order = ++order_;
    header.committed = committed_;
    header.checksum = chunk_checksum(header, payload_.data(), payload_.size());
    chain_ = chain(chain_, header);
    payload_.resize(units * kUnitBytes - sizeof(ChunkHeader));
    write(&header, sizeof(header));
    write(payload_.data(), payload_.size());
    payload_.clear();
    committed_ = 0;
    units_ += units;
  }

  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  ChunkKind kind_ = ChunkKind::Free;
  uint32_t thread_ = 0;
  uint64_t committed_ = 0, order_ = 0, chain_ = 0, units_ = 0;
  std::vector<std::byte> payload_;
  std::unordered_map<std::string, uint32_t> sites_;
  std::vector<SpanSite> new_sites_;
};

template <typename Record>
Record load(const std::byte* bytes) {
  Record record;
  std::memcpy(&record, bytes, sizeof(record));
  return record;
}

bool is_call(const SpanRecord& record) {
  return record.scope == kScopePython || record.scope == kScopeModule;
}

// Whether it is a call of a C function; of files of earlier releases nobody knows.
bool is_call_of_c(const SpanRecord& record) {
  return record.scope == kScopePython && record.parameter != 0 &&
         (record.parameter & kCallKindMask) == kCallOfC;
}

// Which records are a session's, and what of them.
class Filter {
 public:
  // `version`: of the format of the recording.
  Filter(const RecordingDictionary& dictionary, uint32_t version, uint32_t session,
         const RecordingWindow& window)
      : version_(version),
        window_(window),
        from_(window.begin.tick),
        to_(window.to_tick),
        others_(dictionary, session) {}

  bool has(uint32_t what) const { return (window_.what & what) != 0; }

  // Whether it is a window of time.
  bool is_part() const { return window_.ended_within_tick != 0; }

  bool within(uint64_t tick) const { return tick >= from_ && (to_ == 0 || tick < to_); }

  // Whether it recorded operators and samples then.
  bool records_at(uint64_t tick) const {
    if (!within(tick)) return false;
    const auto next = first_pause([tick](const auto& pause) { return pause.first <= tick; });
    if (next == window_.pauses.begin()) return true;
    const uint64_t to = std::prev(next)->second;
    return to != 0 && tick >= to;
  }

  // Whether any of a chunk's records may be the session's. In each chunk they are in order of time, but for
  // calls, of which some began before what is written before them. Spans that a window of time cuts, and
  // calls that ran when the session began, began before.
  bool may_take(const ChunkHeader& chunk, const std::byte* payload, std::size_t records) const {
    switch (static_cast<ChunkKind>(chunk.kind)) {
      case ChunkKind::Spans:
        return has(kRecordCalls | kRecordModuleSpans) || is_part() || may_take_spans(payload, records);
      case ChunkKind::Allocations:
        return has(kRecordMemory) && may_take<AllocationRecord>(payload, records, &AllocationRecord::tick);
      case ChunkKind::Notes:
        return may_take<NoteRecord>(payload, records, &NoteRecord::span_tick);
      case ChunkKind::Samples:
        return has(kRecordSamples) && may_take<SampleRecord>(payload, records, &SampleRecord::tick);
      default:
        return true;
    }
  }

  bool pauses_between(uint64_t from, uint64_t to) const {
    const auto next = first_pause([from](const auto& pause) { return pause.first < from; });
    return next != window_.pauses.end() && next->first < to;
  }

  bool leaves_to_others(const SpanRecord& record) const { return others_.has(record); }

  // Calls `visit(record, was_running)` with what the session alone would have written of a record: once, or
  // not at all, or of a call once for each time that it ran between two pauses. What was running when the
  // session, or its window of time, began, or when it went on, begins there.
  template <typename Visit>
  void for_each_part(SpanRecord record, Visit visit) const {
    const bool call = is_call(record);
    if (call && !has(record.scope == kScopePython ? kRecordCalls : kRecordModuleSpans)) return;
    if (others_.has(record)) return;
    // Of the first session, which it becomes.
    if (others_.is_own_mark(record)) record.parameter = 1;
    if (!has(kRecordStacks)) record.stack = 0;
    if (!has(kRecordModules)) record.module = 0;
    if (!has(kRecordShapes)) record.shapes = 0;
    const Stretch whole{from_, std::max(from_, window_.ended_before_tick), to_,
                        std::max(to_, window_.ended_within_tick)};
    if (!call) {
      const bool began = records_at(record.start_tick);
      if (began || is_part()) visit_within(record, whole, began, visit);
      return;
    }
    Stretch stretch = whole;
    const uint64_t start = record.start_tick, end = record.end_tick;
    auto pause = first_pause([start](const auto& one) { return one.second != 0 && one.second <= start; });
    if (pause != window_.pauses.begin() && std::prev(pause)->second > from_)
      stretch.from = stretch.ended_before = std::prev(pause)->second;
    for (; pause != window_.pauses.end(); ++pause) {
      const auto [from, to] = *pause;
      if (to_ != 0 && from >= to_) break;
      Stretch before = stretch;
      before.to = before.ended_within = from;
      if (from > before.from) visit_within(record, before, before.has(start), visit);
      if (to == 0 || (end != 0 && end <= from)) return;
      if (to > from_) stretch.from = stretch.ended_before = to;
    }
    if (stretch.to == 0 || stretch.from < stretch.to)
      visit_within(record, stretch, stretch.has(start), visit);
  }

  bool take(const NoteRecord& note) const {
    if (!records_at(note.span_tick)) return false;
    switch (static_cast<NoteKind>(note.kind)) {
      case NoteKind::Operand:
        return has(kRecordMemory) && has(kRecordShapes);
      case NoteKind::Gradient:
        return has(kRecordMemory);
      case NoteKind::RecordFunction:
        return has(kRecordFunctionIds);
      case NoteKind::TensorVersion:
      case NoteKind::TensorContent:
        return has(kRecordTensorVersions);
      default:
        return true;
    }
  }

  bool take(const AllocationRecord& record) const { return has(kRecordMemory) && within(record.tick); }

  // Rows are the session's whenever they were written, but not those of a window of time; without rows they
  // announce their table.
  bool take(const RowsHeader& rows) const { return !is_part() || rows.rows == 0 || within(rows.tick); }

  bool take(SampleRecord& record) const {
    if (!has(kRecordSamples) || !records_at(record.tick)) return false;
    record.since_tick = std::max(record.since_tick, from_);
    if (!has(kRecordModules)) record.module = 0;
    return true;
  }

 private:
  // Some time in which the session recorded: [from, to), `to` 0 without end. What ended up to the first of
  // the other ticks has ended before it, and up to the second one in it.
  struct Stretch {
    uint64_t from, ended_before, to, ended_within;

    bool has(uint64_t tick) const { return tick >= from && (to == 0 || tick < to); }
  };

  using Pauses = std::vector<std::pair<uint64_t, uint64_t>>;

  // The first of the pauses, which are in order, that is not `before`.
  template <typename Before>
  Pauses::const_iterator first_pause(Before before) const {
    return std::partition_point(window_.pauses.begin(), window_.pauses.end(), before);
  }

  // Visits what a record has in a stretch, in which it `began` or not.
  template <typename Visit>
  void visit_within(SpanRecord record, const Stretch& stretch, bool began, Visit visit) const {
    if (!began) {
      const bool running = record.start_tick < stretch.from &&
                           (record.end_tick == 0 || record.end_tick > stretch.ended_before);
      // The recorder cannot see those of C functions where calls are switched on.
      if (!running || is_call_of_c(record)) return;
      record.start_tick = stretch.from;
      record.flags |= kSpanBegunBefore;
    }
    if (stretch.to != 0 && (record.end_tick == 0 || record.end_tick > stretch.ended_within)) {
      const bool cut = is_call(record) || is_part();
      record.end_tick = cut ? stretch.to : 0;
      if (cut) record.flags |= kSpanCut;
    }
    visit(record, !began);
  }

  bool may_take_spans(const std::byte* payload, std::size_t records) const {
    if (records == 0) return false;
    const std::size_t bytes = bytes_of_record(static_cast<uint32_t>(ChunkKind::Spans), version_);
    return start_tick_of(payload + (records - 1) * bytes, version_) >= from_ &&
           (to_ == 0 || start_tick_of(payload, version_) < to_);
  }

  template <typename Record>
  bool may_take(const std::byte* payload, std::size_t records, uint64_t Record::* tick) const {
    if (records == 0) return false;
    const auto first = load<Record>(payload), last = load<Record>(payload + (records - 1) * sizeof(Record));
    return last.*tick >= from_ && (to_ == 0 || first.*tick < to_);
  }

  const uint32_t version_;
  const RecordingWindow& window_;
  const uint64_t from_, to_;
  const RangesOfOthers others_;
};

// Calls `visit(header, payload)` for each entry of a dictionary that is whole.
template <typename Visit>
void for_each_entry(const ChunkList& chunks, Visit visit) {
  for (std::span<const std::byte> payload : chunks.dictionary) {
    while (payload.size() >= sizeof(EntryHeader)) {
      EntryHeader header;
      std::memcpy(&header, payload.data(), sizeof(header));
      payload = payload.subspan(sizeof(header));
      const std::size_t padded = (std::size_t{header.bytes} + 7) / 8 * 8;
      if (padded > payload.size()) break;
      visit(header, payload.data());
      payload = payload.subspan(padded);
    }
  }
}

uint64_t since(uint64_t now, uint64_t then) { return now - std::min(now, then); }

// What was lost since the session began. What a ring has recycled of a kind of records is the session's only
// if some of it is as late as the session. Before version 6 no file says so; then it is if there are no
// chunks that are older.
void count_from(FileHeader& header, const RecordingPosition& begin, bool oldest_are_gone) {
  const auto recycled = [&](ChunkKind kind) {
    return header.version < 6 ? oldest_are_gone
                              : header.recycled_until[static_cast<std::size_t>(kind)] >= begin.tick;
  };
  const auto counted = [&](ChunkKind kind, uint64_t& now, uint64_t then) {
    now = recycled(kind) ? since(now, then) : 0;
  };
  header.dropped_spans = since(header.dropped_spans, begin.dropped_spans);
  header.dropped_allocations = since(header.dropped_allocations, begin.dropped_allocations);
  header.dropped_notes = since(header.dropped_notes, begin.dropped_notes);
  header.dropped_samples = since(header.dropped_samples, begin.dropped_samples);
  header.ring_dropped_spans = since(header.ring_dropped_spans, begin.ring_dropped_spans);
  header.ring_dropped_allocations = since(header.ring_dropped_allocations, begin.ring_dropped_allocations);
  header.ring_dropped_notes = since(header.ring_dropped_notes, begin.ring_dropped_notes);
  header.ring_dropped_samples = since(header.ring_dropped_samples, begin.ring_dropped_samples);
  counted(ChunkKind::Spans, header.recycled_spans, begin.recycled_spans);
  counted(ChunkKind::Allocations, header.recycled_allocations, begin.recycled_allocations);
  counted(ChunkKind::Notes, header.recycled_notes, begin.recycled_notes);
  counted(ChunkKind::Samples, header.recycled_samples, begin.recycled_samples);
  header.truncated_strings = since(header.truncated_strings, begin.truncated_strings);
  header.dropped_dictionary = since(header.dropped_dictionary, begin.dropped_dictionary);
  header.limited_dictionary = since(header.limited_dictionary, begin.limited_dictionary);
  header.torn_samples = since(header.torn_samples, begin.torn_samples);
  header.dropped_rows = since(header.dropped_rows, begin.dropped_rows);
  header.ring_dropped_rows = since(header.ring_dropped_rows, begin.ring_dropped_rows);
  counted(ChunkKind::Rows, header.recycled_rows, begin.recycled_rows);
}

// The modules of a session get numbers without gaps, so that those that it never met are no rows of its
// table.
class ModuleNumbers {
 public:
  void use(uint32_t module) {
    if (module != 0) used_.insert(module);
  }

  // Adds those that called or contain the used ones, and numbers them all in their order.
  void number(const ChunkList& chunks) {
    std::unordered_map<uint32_t, std::vector<uint32_t>> above;
    for_each_entry(chunks, [&](const EntryHeader& header, const std::byte* payload) {
      const bool module = header.type == static_cast<uint32_t>(Entry::Module);
      if (!module && header.type != static_cast<uint32_t>(Entry::ModuleName)) return;
      if (header.bytes < 3 * sizeof(uint32_t)) return;
      const std::size_t place = module ? 2 : 1;
      above[load<uint32_t>(payload)].push_back(load<uint32_t>(payload + place * sizeof(uint32_t)));
    });
    std::vector<uint32_t> open(used_.begin(), used_.end());
    while (!open.empty()) {
      const uint32_t module = open.back();
      open.pop_back();
      for (const uint32_t one : above[module]) {
        if (one != 0 && used_.insert(one).second) open.push_back(one);
      }
    }
    for (const uint32_t module : used_) {
      const auto next = static_cast<uint32_t>(numbers_.size() + 1);
      numbers_.emplace(module, next);
    }
  }

  // 0 for a module that the session never met.
  uint32_t operator[](uint32_t module) const {
    const auto found = numbers_.find(module);
    return found == numbers_.end() ? 0 : found->second;
  }

 private:
  std::set<uint32_t> used_;
  std::unordered_map<uint32_t, uint32_t> numbers_;
};

class Cutting {
 public:
  Cutting(const ChunkList& chunks, std::span<const SpanSite> sites, uint32_t session, const Filter& filter,
          RecordingWriter& writer)
      : chunks_(chunks), sites_(sites), session_(session), filter_(filter), writer_(writer) {}

  void write_records() {
    look_through();
    // The thread whose operators are at hand, and when its last one began.
    std::optional<uint32_t> walked;
    uint64_t last_tick = 0;
    KeptCalls kept;
    const auto write = [&](uint32_t thread, SpanRecord record) {
      threads_.insert(thread);
      if (record.scope < kScopePython) {
        // It says how its stack differs from that of the operator before, which may be none of the
        // session's.
        const bool follows = walked == thread && !filter_.pauses_between(last_tick, record.start_tick);
        if (record.scope != kBackwardScope)
          record.forward_thread = follows ? kept.take(record.forward_thread) : uint16_t{0};
        walked = thread;
        last_tick = record.start_tick;
      }
      record.module = modules_[record.module];
      writer_.add_span(thread, record);
    };
    std::optional<uint32_t> thread;
    for (const RecordChunk& chunk : chunks_.spans) {
      if (std::exchange(thread, chunk.thread) != chunk.thread) {
        kept.begin_thread();
        for (const Running& running : running_[chunk.thread]) write(chunk.thread, running.record);
      }
      for (std::size_t row = 0; row < chunk.records; ++row) {
        const SpanRecord whole = load_span(chunk, row, sites_);
        if (walked != chunk.thread) kept.begin_thread();
        if (filter_.leaves_to_others(whole)) {
          kept.leave_out(whole);
          left_out_.insert(whole.start_tick);
        }
        filter_.for_each_part(whole, [&](const SpanRecord& record, bool was_running) {
          if (!was_running) write(chunk.thread, record);
        });
      }
    }
    write_all<AllocationRecord>(ChunkKind::Allocations, chunks_.allocations);
    write_all<NoteRecord>(ChunkKind::Notes, chunks_.notes);
    write_rows();
    std::unordered_set<uint32_t> sampled;
    for (const RecordChunk& chunk : chunks_.samples) {
      for (std::size_t at = 0; at < chunk.records; ++at) {
        auto record = load<SampleRecord>(chunk.payload + at * sizeof(SampleRecord));
        if (!filter_.take(record)) continue;
        threads_.insert(record.thread);
        // Since the sample before, which is none of the session's.
        if (sampled.insert(record.thread).second) std::memset(record.waited, 0, sizeof(record.waited));
        record.module = modules_[record.module];
        add(ChunkKind::Samples, 0, record);
      }
    }
  }

  // The entries of the dictionary, but for the threads that have no records and the metadata of other
  // sessions.
  void write_dictionary(const RecordingDictionary& dictionary, const std::optional<CutTimes>& times) {
    for_each_entry(chunks_, [this](const EntryHeader& header, const std::byte* payload) {
      std::string entry(reinterpret_cast<const char*>(payload), header.bytes);
      if (renumber(static_cast<Entry>(header.type), entry))
        writer_.add_entry(static_cast<Entry>(header.type), entry);
    });
    writer_.add_sites();
    const std::string own = std::string(kSessionKey) + std::to_string(session_) + '.';
    for (const auto& [key, value] : dictionary.info) {
      std::string_view name = key;
      if (name.starts_with(own)) {
        name.remove_prefix(own.size());
      } else if (name.starts_with(kSessionKey) || (session_ != 0 && !is_of_samples(name))) {
        continue;
      }
      if (is_of_samples(name) && !filter_.has(kRecordSamples)) continue;
      add_info(name, value);
    }
    if (times && times->first_step >= 0) add_info(kFirstStep, std::to_string(times->first_step));
  }

 private:
  void add_info(std::string_view key, std::string_view json) {
    const auto bytes = static_cast<uint32_t>(key.size());
    std::string entry(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
    entry.append(key).append(json);
    writer_.add_entry(Entry::Info, entry);
  }

  // What was running when the session began, or went on.
  struct Running {
    SpanRecord record;
    uint64_t start_tick;  // when it really began
  };

  // Numbers the modules, and puts what was running in its order.
  void look_through() {
    for (const RecordChunk& chunk : chunks_.spans) {
      for (std::size_t row = 0; row < chunk.records; ++row) {
        const SpanRecord whole = load_span(chunk, row, sites_);
        filter_.for_each_part(whole, [&](const SpanRecord& record, bool was_running) {
          modules_.use(record.module);
          if (was_running) running_[chunk.thread].push_back({record, whole.start_tick});
        });
      }
    }
    for (auto& [thread, running] : running_) put_in_order(running);
    for (const RecordChunk& chunk : chunks_.samples) {
      for (std::size_t at = 0; at < chunk.records; ++at) {
        auto record = load<SampleRecord>(chunk.payload + at * sizeof(SampleRecord));
        if (filter_.take(record)) modules_.use(record.module);
      }
    }
    modules_.number(chunks_);
  }

  // Outermost first at each tick: as they began, and calls by their places, for some were written late.
  static void put_in_order(std::vector<Running>& running) {
    std::stable_sort(running.begin(), running.end(), [](const Running& one, const Running& other) {
      return std::tie(one.record.start_tick, one.start_tick) <
             std::tie(other.record.start_tick, other.start_tick);
    });
    std::vector<std::size_t> rows;
    std::vector<SpanRecord> calls;
    for (std::size_t first = 0, last = 0; first < running.size(); first = last) {
      const uint64_t tick = running[first].record.start_tick;
      rows.clear();
      calls.clear();
      for (; last < running.size() && running[last].record.start_tick == tick; ++last) {
        if (!is_call(running[last].record)) continue;
        rows.push_back(last);
        calls.push_back(running[last].record);
      }
      std::stable_sort(calls.begin(), calls.end(), [](const SpanRecord& one, const SpanRecord& other) {
        return one.parameter < other.parameter;
      });
      for (std::size_t at = 0; at < rows.size(); ++at) running[rows[at]].record = calls[at];
    }
  }

  // The rows that the session appended, and those of the whole recording.
  void write_rows() {
    for (const RecordChunk& chunk : chunks_.rows) {
      std::span<const std::byte> rest(chunk.payload, chunk.records);
      while (rest.size() >= sizeof(RowsHeader)) {
        const auto header = load<RowsHeader>(rest.data());
        const std::size_t bytes = bytes_of_rows(header);
        if (rest.size() < bytes) break;
        const std::string_view name(reinterpret_cast<const char*>(rest.data() + sizeof(header)),
                                    header.name_bytes);
        if (name == kCompiling || (chunk.thread == session_ && filter_.take(header)))
          writer_.add(ChunkKind::Rows, 0, rest.data(), bytes, bytes);
        rest = rest.subspan(bytes);
      }
    }
  }

  template <typename Record>
  void add(ChunkKind kind, uint32_t thread, const Record& record) {
    writer_.add(kind, thread, &record, sizeof(record), 1);
  }

  template <typename Record>
  void write_all(ChunkKind kind, const std::vector<RecordChunk>& chunks) {
    for (const RecordChunk& chunk : chunks) {
      for (std::size_t at = 0; at < chunk.records; ++at) {
        const auto record = load<Record>(chunk.payload + at * sizeof(Record));
        if (!filter_.take(record)) continue;
        if constexpr (std::is_same_v<Record, NoteRecord>) {
          if (left_out_.contains(record.span_tick)) continue;
        }
        threads_.insert(chunk.thread);
        add(kind, chunk.thread, record);
      }
    }
  }

  // Gives an entry the session's numbers of modules; false for one that is not the session's.
  bool renumber(Entry type, std::string& entry) const {
    if (type == Entry::Info || type == Entry::Site) return false;
    // That there are any says that they were recorded.
    if (type == Entry::Shapes) return filter_.has(kRecordShapes);
    if (entry.size() < 3 * sizeof(uint32_t)) return true;
    uint32_t fields[3];
    std::memcpy(fields, entry.data(), sizeof(fields));
    switch (type) {
      case Entry::Thread:
        return threads_.count(fields[0]) != 0;
      case Entry::Module:
        fields[0] = modules_[fields[0]];
        fields[2] = modules_[fields[2]];
        break;
      case Entry::ModuleName:
        fields[0] = modules_[fields[0]];
        fields[1] = modules_[fields[1]];
        break;
      case Entry::Parameter:
        fields[1] = modules_[fields[1]];
        break;
      default:
        return true;
    }
    std::memcpy(entry.data(), fields, sizeof(fields));
    return fields[0] != 0;
  }

  const ChunkList& chunks_;
  const std::span<const SpanSite> sites_;
  const uint32_t session_;
  const Filter& filter_;
  RecordingWriter& writer_;
  ModuleNumbers modules_;
  std::unordered_set<uint32_t> threads_;
  std::unordered_map<uint32_t, std::vector<Running>> running_;  // by thread
  // When spans of other sessions began.
  std::unordered_set<uint64_t> left_out_;
};

// The first tick from `tick` on that is at least that many nanoseconds after the clock's start.
uint64_t tick_at(const TickClock& clock, uint64_t tick, int64_t time_ns) {
  uint64_t least = tick, most = UINT64_MAX;
  while (least < most) {
    const uint64_t middle = least + (most - least) / 2;
    if (clock.to_ns(middle) >= time_ns) {
      most = middle;
    } else {
      least = middle + 1;
    }
  }
  return least;
}

// Leaves of a session's window what is within `times`.
void narrow(RecordingWindow& window, const FileHeader& header, const CutTimes& times) {
  const uint64_t begin = window.begin.tick;
  const std::size_t pairs = std::min(header.clock_pairs, kMaxClockPairs);
  const TickClock clock(header.clock, begin, std::span(header.pairs, pairs));
  const uint64_t from = tick_at(clock, begin, times.from_ns);
  window.ended_before_tick = tick_at(clock, begin, times.from_ns + 1) - 1;
  const uint64_t to = times.to_ns == INT64_MAX ? 0 : tick_at(clock, begin, times.to_ns);
  if (to == 0 || (window.to_tick != 0 && window.to_tick < to)) {
    window.ended_within_tick = window.to_tick == 0 ? UINT64_MAX : window.to_tick;
  } else {
    window.ended_within_tick = tick_at(clock, begin, times.to_ns + 1) - 1;
    window.to_tick = to;
  }
  window.begin.tick = window.to_tick == 0 ? from : std::min(from, window.to_tick);
}

}  // namespace

std::optional<RecordingWindow> parse_window(std::string_view json) {
  std::vector<uint64_t> numbers;
  bool in_number = false;
  for (const char character : json) {
    if (std::isdigit(static_cast<unsigned char>(character)) == 0) {
      in_number = false;
      continue;
    }
    if (!in_number) numbers.push_back(0);
    in_number = true;
    numbers.back() = numbers.back() * 10 + static_cast<uint64_t>(character - '0');
  }
  if (numbers.size() < kPositionNumbers + 2 || (numbers.size() - kPositionNumbers) % 2 != 0)
    return std::nullopt;
  RecordingWindow window;
  window.what = static_cast<uint32_t>(numbers[0]);
  std::memcpy(&window.begin, &numbers[1], sizeof(window.begin));
  window.to_tick = numbers[1 + kPositionNumbers];
  for (std::size_t at = 2 + kPositionNumbers; at < numbers.size(); at += 2)
    window.pauses.emplace_back(numbers[at], numbers[at + 1]);
  return window;
}

void cut_recording(std::span<const std::byte> file, uint32_t session, const std::string& target,
                   const std::optional<CutTimes>& times) {
  FileHeader header = read_header(file);
  const auto names_only = [](const ChunkHeader& chunk, const std::byte*, std::size_t) {
    return static_cast<ChunkKind>(chunk.kind) == ChunkKind::Dictionary;
  };
  DictionaryParser parser;
  const ChunkList names = list_chunks(file, header, names_only);
  for (const std::span<const std::byte>& payload : names.dictionary) parser.add_chunk(payload);
  const RecordingDictionary dictionary = parser.build(header.dropped_dictionary);

  const auto window_of = [&dictionary](uint32_t number) -> std::optional<RecordingWindow> {
    const std::string key = std::string(kSessionKey) + std::to_string(number);
    std::optional<RecordingWindow> found;
    for (const auto& [name, value] : dictionary.info) {
      if (name != key) continue;
      if (const auto window = parse_window(value)) found = window;
    }
    return found;
  };
  RecordingWindow whole;
  whole.what = ~uint32_t{0};
  RecordingWindow window = window_of(session).value_or(whole);

  // The first session began with the recording.
  if (window.begin.tick == 0) window.begin = position_in({}, header.start_tick);
  if (header.stop_tick != 0 && (window.to_tick == 0 || window.to_tick > header.stop_tick))
    window.to_tick = header.stop_tick;

  if (times) narrow(window, header, *times);

  const Filter of_chunks(dictionary, header.version, session, window);
  uint64_t oldest = UINT64_MAX;
  const auto wanted = [&](const ChunkHeader& chunk, const std::byte* payload, std::size_t records) {
    const auto kind = static_cast<ChunkKind>(chunk.kind);
    if (kind != ChunkKind::Dictionary && kind != ChunkKind::Rows) oldest = std::min(oldest, chunk.order);
    return of_chunks.may_take(chunk, payload, records);
  };
  const ChunkList chunks = list_chunks(file, header, wanted);
  // With the names of these records: their ids may be others by now.
  DictionaryParser of_records;
  for (const std::span<const std::byte>& payload : chunks.dictionary) of_records.add_chunk(payload);
  const RecordingDictionary names_of_records = of_records.build(header.dropped_dictionary);
  const Filter filter(names_of_records, header.version, session, window);

  RecordingWriter writer(target);
  Cutting cutting(chunks, names_of_records.sites, session, filter, writer);
  cutting.write_records();
  cutting.write_dictionary(dictionary, times);
  // Whether chunks that were written since the session began have been freed.
  const bool oldest_are_gone = oldest > window.begin.orders + 1;
  count_from(header, window.begin, oldest_are_gone);
  header.start_tick = window.begin.tick;
  header.stop_tick = window.to_tick;
  header.state = static_cast<uint32_t>(window.to_tick == 0 ? FileState::Recording : FileState::Stopped);
  writer.finish(header);
}

}  // namespace kinetoscope
