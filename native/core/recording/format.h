// The format of recording files, which is all that the recorder and the reader share.
//
// Layout: a FileHeader in the first kHeaderBytes, followed by chunks, each a whole number of units of
// FileHeader::chunk_bytes. A chunk belongs to one thread (SPANS, ALLOCATIONS, NOTES), one session (ROWS), the
// whole process (DICTIONARY, SAMPLES), or is free (FREE). Its writer fills the payload and then
// release-stores ChunkHeader::committed, so everything below `committed` is complete, even after SIGKILL: the
// pages are a shared mapping of the file. Dictionary entries are committed before the first record that
// refers to them.
//
// Missing chunks are detected: chunks are numbered (ChunkHeader::order), and the header has the number of
// chunks that were handed out, and of those that a ring has freed. A chunk that was zeroed, or never reached
// the disk, is missing among them. When the recording is stopped, one checksum covers the numbers and
// checksums of all chunks.
//
// Ids (names, stacks, modules, shapes, parameters, sites, strings) start at 1; 0 means none.
// All numbers are little-endian. In version 1 each chunk was one unit; since version 3 there are samples,
// since version 4 the numbers of chunks are counted, since version 5 ranges have numbers and there are rows
// of named tables, since version 6 a ring says until when it has overwritten each kind of records, since
// version 7 its dictionary is collected, and holds what spans have in common. A reader refuses any version
// above kVersion.
//
// A collection of the dictionary frees entries that no record refers to any more: the others are written
// again, with the same ids, before their old chunks are freed. Ids are not reused, so after the first
// collection they are not dense any more, and the same text may have several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace kinetoscope {

inline constexpr char kMagic[8] = {'K', 'S', 'C', 'O', 'P', 'E', '\r', '\n'};
inline constexpr uint32_t kVersion = 7;
inline constexpr uint32_t kHeaderBytes = 8192;
inline constexpr uint32_t kUnitBytes = 1024;
inline constexpr uint32_t kChunkMagic = 0x4b43484bu;
inline constexpr uint32_t kMaxClockPairs = 128;
// Longer strings are cut here and counted in FileHeader::truncated_strings.
inline constexpr uint32_t kMaxStringBytes = 192 * 1024;
// More rows than this must be appended in parts; else they are counted as dropped.
inline constexpr uint32_t kMostRowsBytes = 4 * 1024 * 1024;

// The id of names, stacks and shapes for which the dictionary had no space.
inline constexpr uint32_t kUnknownId = 0x7fffffff;

// A simultaneous reading of the tick counter and the kernel's clocks.
struct ClockPair {
  uint64_t tick;
  int64_t monotonic_ns;
  int64_t realtime_ns;
};

// What a recording, or a session of it, contains in addition to names and times.
enum Recorded : uint32_t {
  kRecordShapes = 1,
  kRecordMemory = 2,
  kRecordStacks = 4,
  kRecordModules = 8,
  kRecordSamples = 16,
  kRecordFunctionIds = 64,
  kRecordCalls = 0x100,
  kRecordModuleSpans = 0x200,
  kRecordTensorVersions = 0x400,
};

enum class FileState : uint32_t {
  Recording = 0,  // the process is alive, or was killed
  Stopped = 1,    // stop() completed the file
};

enum class ChunkKind : uint32_t {
  Free = 0,
  Spans = 1,
  Allocations = 2,
  Dictionary = 3,
  Notes = 4,
  Samples = 5,
  Rows = 6
};
inline constexpr size_t kChunkKinds = 7;

struct FileHeader {
  char magic[8];
  uint32_t version;
  uint32_t chunk_bytes;    // of a unit
  uint32_t state;          // FileState
  uint32_t clock;          // 0 = monotonic ns, 1 = x86 TSC, 2 = aarch64 virtual counter
  uint32_t process;        // pid
  uint32_t clock_pairs;    // how many of `pairs` are valid (release-stored)
  uint64_t chunks;         // how many units were handed out (release-stored)
  uint64_t start_tick;     // first tick of the recording: time 0
  uint64_t stop_tick;      // 0 while recording
  uint64_t dropped_spans;  // no room (disk full), never written
  uint64_t dropped_allocations;
  uint64_t recycled_spans;  // overwritten by the ring
  uint64_t recycled_allocations;
  uint64_t truncated_strings;
  uint64_t dropped_dictionary;  // dictionary entries that found no room: their ids stay unnamed
  ClockPair
      pairs[kMaxClockPairs];  // in order of time, [0] before the start; when full the last slot is rewritten
  uint64_t dropped_notes;
  uint64_t recycled_notes;
  // Since version 2.
  uint64_t ring_dropped_spans;  // no room because all of the ring was in use by other threads
  uint64_t ring_dropped_allocations;
  uint64_t ring_dropped_notes;
  uint64_t limited_dictionary;  // dictionary entries beyond the dictionary's share of the file
  uint64_t checksum;            // header_checksum() once nothing more is written; 0 before
  // Since version 3.
  uint64_t dropped_samples;
  uint64_t ring_dropped_samples;
  uint64_t recycled_samples;
  uint64_t torn_samples;  // threads whose stack changed while it was read
  // Since version 4.
  uint64_t orders;           // the last ChunkHeader::order that was handed out; stored after `chunks`
  uint64_t recycled_chunks;  // how many chunks a ring has freed; counted before they are
  uint64_t chain;            // chain() of all chunks in the order of the file; 0 before `checksum` is there
  // Since version 5.
  uint64_t dropped_rows;
  uint64_t ring_dropped_rows;
  uint64_t recycled_rows;
  // Since version 6. By ChunkKind: when the last of the records began, or were written, that a ring has
  // overwritten. All that are later are there.
  uint64_t recycled_until[kChunkKinds];
  // Since version 7. How many collections of the dictionary have begun to free its chunks; counted before
  // they are freed.
  uint64_t dictionary_collections;
};
static_assert(sizeof(FileHeader) <= kHeaderBytes);

// The position in a recording, and its losses so far: stored for the start of a session in a shared
// recording.
struct RecordingPosition {
  uint64_t tick;
  uint64_t orders;  // FileHeader::orders
  uint64_t dropped_spans, dropped_allocations, dropped_notes, dropped_samples;
  uint64_t ring_dropped_spans, ring_dropped_allocations, ring_dropped_notes, ring_dropped_samples;
  uint64_t recycled_spans, recycled_allocations, recycled_notes, recycled_samples;
  uint64_t truncated_strings, dropped_dictionary, limited_dictionary, torn_samples;
  uint64_t dropped_rows, ring_dropped_rows, recycled_rows;
};
static_assert(sizeof(RecordingPosition) == 21 * sizeof(uint64_t));

inline RecordingPosition position_in(const FileHeader& header, uint64_t tick) {
  return {tick,
          header.orders,
          header.dropped_spans,
          header.dropped_allocations,
          header.dropped_notes,
          header.dropped_samples,
          header.ring_dropped_spans,
          header.ring_dropped_allocations,
          header.ring_dropped_notes,
          header.ring_dropped_samples,
          header.recycled_spans,
          header.recycled_allocations,
          header.recycled_notes,
          header.recycled_samples,
          header.truncated_strings,
          header.dropped_dictionary,
          header.limited_dictionary,
          header.torn_samples,
          header.dropped_rows,
          header.ring_dropped_rows,
          header.recycled_rows};
}

struct ChunkHeader {
  uint32_t magic;   // kChunkMagic once handed out
  uint32_t kind;    // ChunkKind
  uint32_t thread;  // index of a Thread entry; of Rows the number of a session; 0 for Dictionary and Samples
  uint32_t units;   // how long it is; 0 in version 1: one unit
  uint64_t order;   // rises with every hand-out; a recycled chunk gets a new one
  uint64_t committed;  // records, or payload bytes of a Dictionary or of Rows, that are whole
  uint64_t checksum;   // once nothing in it changes any more: chunk_checksum(); 0 before
  uint64_t padding[3];
};
static_assert(sizeof(ChunkHeader) == 64);

// A checksum that any change of one word changes, as fast as memory is read.
inline uint64_t checksum_of(const void* data, size_t bytes) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15ull;
  uint64_t lanes[4] = {bytes, 1, 2, 3};
  const auto add = [&lanes](size_t lane, uint64_t word) {
    const uint64_t product = (lanes[lane] ^ word) * kFactor;
    lanes[lane] = product ^ (product >> 32);
  };
  const auto* at = static_cast<const unsigned char*>(data);
  for (; bytes >= sizeof(lanes); bytes -= sizeof(lanes), at += sizeof(lanes)) {
    uint64_t words[4];
    std::memcpy(words, at, sizeof(words));
    for (size_t lane = 0; lane < 4; ++lane) add(lane, words[lane]);
  }
  for (size_t lane = 0; bytes > 0; ++lane) {
    const size_t part = bytes < sizeof(uint64_t) ? bytes : sizeof(uint64_t);
    uint64_t word = 0;
    std::memcpy(&word, at, part);
    add(lane, word);
    bytes -= part;
    at += part;
  }
  for (size_t lane = 1; lane < 4; ++lane) add(0, lanes[lane]);
  return lanes[0] == 0 ? 1 : lanes[0];
}

// The checksum of `header`, with 0 for its own checksum, without fields that its version does not have.
inline uint64_t header_checksum(FileHeader header) {
  header.checksum = 0;
  const size_t bytes = header.version < 3   ? offsetof(FileHeader, dropped_samples)
                       : header.version < 4 ? offsetof(FileHeader, orders)
                       : header.version < 5 ? offsetof(FileHeader, dropped_rows)
                       : header.version < 6 ? offsetof(FileHeader, recycled_until)
                       : header.version < 7 ? offsetof(FileHeader, dictionary_collections)
                                            : sizeof(FileHeader);
  return checksum_of(&header, bytes);
}

// The checksum of `header`, and of the committed `bytes` of its payload.
inline uint64_t chunk_checksum(const ChunkHeader& header, const void* payload, size_t bytes) {
  const uint64_t parts[] = {(uint64_t{header.kind} << 32) | header.thread, header.units, header.order,
                            header.committed, checksum_of(payload, bytes)};
  return checksum_of(parts, sizeof(parts));
}

// The chain `before` (0: none) with the chunk that follows in the file; chunks that hold nothing do not
// count.
inline uint64_t chain(uint64_t before, const ChunkHeader& header) {
  const uint64_t parts[] = {before, header.order, header.checksum};
  return checksum_of(parts, sizeof(parts));
}

enum SpanFlag : uint8_t {
  kSpanAsync = 1,        // ended on another thread than it began, or torch says that it may
  kSpanCut = 2,          // a call still running at the end of the recording or of its thread, or where calls
                         // were switched off: cut there
  kSpanBegunBefore = 4,  // a call that began before its thread was recorded, or calls were switched on
  kSpanIsCall = 8,       // of a CompactSpan: its scope is a CallScope
};

// Values of SpanRecord::scope beside torch's own.
enum CallScope : uint8_t {
  kScopePython = 100,  // a call of a function; `stack` is of that one function, none for C functions
  kScopeModule = 101,  // a call of an nn.Module: `module`; `stack` is where it was called
};

// A span, as versions before 7 wrote it, and as all are read. `end_tick` 0: it has never ended.
struct SpanRecord {
  uint64_t start_tick = 0;
  uint64_t end_tick = 0;
  uint32_t name = 0;
  uint32_t stack = 0;
  uint32_t module = 0;
  uint32_t shapes = 0;
  int64_t sequence = -1;        // autograd sequence number, -1 without; of a user's range see kStepMark
  uint16_t forward_thread = 0;  // torch's logical id of the forward thread, for backward functions; else
                                // see kKeptMask
  uint8_t scope = 0;            // at::RecordScope, or a CallScope
  uint8_t flags = 0;            // SpanFlag
  uint32_t parameter = 0;       // AccumulateGrad: which parameter; of a step's mark see kStepMark; of a call
                                // its place, see CallKind; else 0
};
static_assert(sizeof(SpanRecord) == 48);

// What the spans of one operator called from one line have in common: entries of the dictionary.
struct SpanSite {
  uint32_t name = 0;
  uint32_t stack = 0;
  uint32_t shapes = 0;
  uint32_t module = 0;
  uint32_t parameter = 0;
  uint32_t scope_and_sequence =
      0;  // the scope, and above it what of SpanRecord::sequence hardly ever changes

  // Of a sequence number, bits 32 to 55. No larger one is recorded.
  static constexpr uint32_t kScopeBits = 8;
  static constexpr int64_t kMostSequence = (int64_t{1} << 55) - 1;

  static constexpr uint32_t rest_of(uint8_t scope, int64_t sequence) {
    return scope | static_cast<uint32_t>(static_cast<uint64_t>(sequence) >> 32) << kScopeBits;
  }
  uint8_t scope() const { return static_cast<uint8_t>(scope_and_sequence); }
  int64_t sequence(uint32_t low) const {
    const auto high = static_cast<int32_t>(scope_and_sequence) >> kScopeBits;
    return static_cast<int64_t>(static_cast<uint64_t>(int64_t{high}) << 32 | low);
  }
  bool operator==(const SpanSite&) const = default;
};
static_assert(sizeof(SpanSite) == 24);

// A span as it is written at its start; its end follows when it ends.
struct CompactSpan {
  uint64_t start;         // the tick, above kFlagBits of SpanFlag
  uint64_t end;           // 0: it has never ended; see end_of(). Above kEndBits: SpanRecord::forward_thread
  uint32_t site;          // SpanSite
  uint32_t sequence_low;  // the lower half of SpanRecord::sequence; see SpanSite

  static constexpr uint32_t kFlagBits = 4, kEndBits = 48;
  static constexpr uint64_t kFlagMask = (uint64_t{1} << kFlagBits) - 1;
  static constexpr uint64_t kEndMask = (uint64_t{1} << kEndBits) - 1;
  // A span longer than this, which is hours, has this bit and the tick of its end, in units of
  // kCoarseTicks; or this bit alone, if it ended before it began.
  static constexpr uint64_t kCoarse = uint64_t{1} << (kEndBits - 1);
  static constexpr uint64_t kCoarseTicks = 8192;

  static constexpr uint64_t start_of(uint64_t tick, uint8_t flags) { return tick << kFlagBits | flags; }
  // What the lower bits of `end` are.
  static constexpr uint64_t end_of(uint64_t start_tick, uint64_t end_tick) {
    const uint64_t ticks = end_tick - start_tick;
    if (ticks < kCoarse - 1) [[likely]]
      return ticks + 1;
    return kCoarse | (end_tick < start_tick ? 0 : (end_tick + kCoarseTicks - 1) / kCoarseTicks);
  }

  uint64_t start_tick() const { return start >> kFlagBits; }
  uint8_t flags() const { return static_cast<uint8_t>(start & kFlagMask); }
  uint64_t end_tick() const {
    const uint64_t bits = end & kEndMask;
    if (bits == 0) return 0;
    if (bits < kCoarse) return start_tick() + bits - 1;
    return bits == kCoarse ? start_tick() - 1 : (bits - kCoarse) * kCoarseTicks;
  }
};
static_assert(sizeof(CompactSpan) == 24);

inline SpanRecord span_at(const CompactSpan& span, const SpanSite& site) {
  return {.start_tick = span.start_tick(),
          .end_tick = span.end_tick(),
          .name = site.name,
          .stack = site.stack,
          .module = site.module,
          .shapes = site.shapes,
          .sequence = site.sequence(span.sequence_low),
          .forward_thread = static_cast<uint16_t>(span.end >> CompactSpan::kEndBits),
          .scope = site.scope(),
          .flags = static_cast<uint8_t>(span.flags() & ~kSpanIsCall),
          .parameter = site.parameter};
}

inline SpanSite site_of(const SpanRecord& span) {
  return {.name = span.name,
          .stack = span.stack,
          .shapes = span.shapes,
          .module = span.module,
          .parameter = span.parameter,
          .scope_and_sequence = SpanSite::rest_of(span.scope, span.sequence)};
}

inline CompactSpan compact(const SpanRecord& span, uint32_t site) {
  const uint8_t call = span.scope >= kScopePython ? kSpanIsCall : 0;
  const uint64_t end = span.end_tick == 0 ? 0 : CompactSpan::end_of(span.start_tick, span.end_tick);
  return {.start = CompactSpan::start_of(span.start_tick, span.flags | call),
          .end = uint64_t{span.forward_thread} << CompactSpan::kEndBits | end,
          .site = site,
          .sequence_low = static_cast<uint32_t>(span.sequence)};
}

// Users' ranges of which `sequence` is a number of their own since version 5. The mark of a step has the
// number behind its name there, and is named without it: steps that never end must not fill the dictionary.
// Its `parameter` is the number of the session that marked it, plus 1; 0: the program did it itself.
// The step of an optimizer has how many of its name the recording had before, for a ring overwrites these.
inline constexpr uint8_t kUserScope = 7;  // at::RecordScope::USER_SCOPE
inline constexpr std::string_view kStepMark = "ProfilerStep#";
inline constexpr std::string_view kOptimizerStep = "Optimizer.step#";

// The keys of the metadata that belong to a session N other than 0 begin with this, "N" and a dot.
inline constexpr std::string_view kSessionKey = "kinetoscope.session.";

// The range of a garbage collection of Python, and the key of the metadata of a session that records them.
inline constexpr std::string_view kCollection = "Python GC";
inline constexpr std::string_view kCollectionsKey = "record_python_gc_info";

// Of a span that is no backward function, in `forward_thread`: how many of the calls on its stack, from the
// outermost, are the same calls as those around its thread's previous span, plus 1. 0: its stack was not
// walked, or is the thread's first.
inline constexpr uint16_t kKeptMask = 0x3ff;
// Above it: how many of these, from the innermost, may as well be new calls that came to the same place.
inline constexpr uint32_t kUnsureShift = 10;
inline constexpr uint32_t kMaxUnsure = 63;

// The kind of a call. In the higher bits is the depth of its frame from 1, which determines its nesting among
// the open calls of its thread: if one kind of calls is switched on later, an outer call is written after
// inner ones. 0: unknown, as in files of earlier releases.
enum CallKind : uint32_t {
  kCallOfModule = 0,
  kCallOfPython = 1,  // within that of the module, if that has the same frame
  kCallOfC = 2,       // with the frame of its caller
};
inline constexpr uint32_t kCallDepthShift = 2;
inline constexpr uint32_t kCallKindMask = 3;

// bytes > 0: allocated; bytes == 0: `address` was freed.
struct AllocationRecord {
  uint64_t tick;
  uint64_t address;
  int64_t bytes;
  uint8_t device_type;  // c10::DeviceType
  int8_t device_index;
  uint16_t reserved;
  uint32_t stack;
};
static_assert(sizeof(AllocationRecord) == 32);

// Additional data of the span of the same thread that began at `span_tick`.
struct NoteRecord {
  uint64_t span_tick = 0;
  uint64_t value = 0;
  int64_t bytes = 0;
  uint32_t parameter = 0;   // Gradient: whose it is; TensorVersion: the version, from 1; see NoteKind
  uint8_t kind = 0;         // NoteKind
  uint8_t argument = 0;     // Operand, TensorVersion: the operator's argument, counted from 0
  uint8_t device_type = 0;  // Operand, Gradient: c10::DeviceType; TensorVersion: TensorFlag
  int8_t device_index = -1;
};
static_assert(sizeof(NoteRecord) == 32);

inline constexpr uint32_t kWaitedUnknown = 1, kWaitedFrom = 2, kMostWaited = (1u << 24) - 1;

enum class SampleState : uint8_t { Unknown = 0, Running = 1, WaitingForGil = 2, Blocked = 3 };

// What a blocked thread waits for, by the system call that it is in.
enum class SampleWait : uint8_t {
  Unknown = 0,
  Lock = 1,
  Sleep = 2,
  File = 3,
  Pipe = 4,
  Socket = 5,
  Process = 6,
  Events = 7,  // of several files, or of one that is none of the others
  Memory = 8,  // a page that is not in memory
  Terminal = 9,
  Other = 10,
};
inline constexpr uint8_t kSampleStateBits = 2;

// The Python stack of a thread at one moment. It represents the time since `since_tick`.
struct SampleRecord {
  uint64_t tick;
  uint64_t since_tick;
  uint32_t thread;  // index of a Thread entry
  uint32_t stack;
  uint32_t module;
  uint8_t state;  // SampleState, and from bit kSampleStateBits SampleWait
  // How long the thread was ready to run, but had no processor, since the sample before: microseconds and
  // kWaitedFrom, so that 0, as older files have, says nothing, and kWaitedUnknown that the system does not
  // tell.
  uint8_t waited[3];
};
static_assert(sizeof(SampleRecord) == 32);

// Of one record of a kind of chunk; 0 for kinds that hold none.
inline constexpr size_t bytes_of_record(uint32_t kind, uint32_t version = kVersion) {
  switch (static_cast<ChunkKind>(kind)) {
    case ChunkKind::Spans:
      return version < 7 ? sizeof(SpanRecord) : sizeof(CompactSpan);
    case ChunkKind::Allocations:
      return sizeof(AllocationRecord);
    case ChunkKind::Notes:
      return sizeof(NoteRecord);
    case ChunkKind::Samples:
      return sizeof(SampleRecord);
    case ChunkKind::Dictionary:
    case ChunkKind::Rows:
      return 1;
    default:
      return 0;
  }
}

enum class NoteKind : uint8_t {
  Operand = 1,         // value: where the storage of a tensor argument begins; bytes: its size
  Gradient = 2,        // the same of a gradient that AccumulateGrad was given
  RecordFunction = 3,  // value: torch's number of the call
  BetweenRanks = 4,    // value: the string that holds the facts of a collective, as JSON
  Arguments = 5,       // value: the string that holds what a range was given by keyword, as a JSON object
  TensorVersion =
      6,  // value: the number of a tensor's storage, 0 if unknown; bytes: where the tensor begins in it
  // value: a hash of what is in the tensor of the note before, 0 if it was not read; bytes: of a batch of
  // sequences how many elements are padding; parameter: 1 + the length of the longest without, 0 if unknown
  TensorContent = 7,
};

enum TensorFlag : uint8_t {
  kTensorIsResult = 1,  // not an argument; `argument` counts the results
  // Memory that others than torch may write without an operator, such as that of a NumPy array.
  kTensorIsShared = 2,
  kTensorIsWhole = 4,   // it has every byte of its storage, once
  kTensorIsNumber = 8,  // a number of Python, whose bits `value` has in place of a storage
};

enum RowsFlag : uint16_t {
  // Their writer keeps rows back for up to a second: a process that is killed loses those.
  kRowsBuffered = 1,
};

// Some rows of a named table, as they are written at once: RowsHeader, the table's name, the rows, zero
// padding to a multiple of 8. They never cross a chunk. The rows are a JSON object: for each column, by its
// name, the list of its values.
struct RowsHeader {
  uint64_t tick;        // when they were written
  uint32_t rows;        // 0 where a table is only announced
  uint32_t json_bytes;  // of the rows
  uint16_t name_bytes;  // of the table's name
  uint16_t flags;       // RowsFlag
  uint32_t reserved;
};
static_assert(sizeof(RowsHeader) == 24);

// How much of a chunk rows with such a header take.
inline constexpr size_t bytes_of_rows(const RowsHeader& header) {
  return (sizeof(RowsHeader) + header.name_bytes + size_t{header.json_bytes} + 7) / 8 * 8;
}

// Dictionary entries: EntryHeader, payload, zero padding to a multiple of 8. An entry never crosses a chunk.
// Payloads are packed u32/u64 in the order named here; `text` runs to the end of the payload.
enum class Entry : uint32_t {
  String = 1,  // u32 id, text (UTF-8; lone surrogates as their three-byte form)
  Name = 2,    // u32 id, u32 string, u32 overload string (0: none)
  Frame = 3,   // u32 id, u32 function string, u32 file string, u32 line, u32 first line of the function (0)
  Stack = 4,   // u32 id, u32 parent stack (0: root), u32 frame; the innermost call is the id itself
  Module = 5,  // u32 id, u32 class string, u32 calling module (0: none), u32 0, u64 address
  ModuleName = 6,  // u32 id, u32 parent module (0: a root), u32 attribute-name string; the last one wins
  Parameter = 7,  // u32 id, u32 module (0: not known yet), u32 name string (0), u32 0, u64 address; last wins
  Shapes = 8,  // u32 id, u32 bytes of dims, u32 bytes of types, u32 bytes of concrete, then these JSON texts;
               // behind them that of the strides, which recordings of earlier releases lack
  Thread = 9,  // u32 index, u32 os thread id, u64 torch's logical id, text = thread name
  Info = 10,   // u32 bytes of key, key, JSON value; the last one of a key wins. Several sessions may share a
               // recording: keys of the second one begin with "kinetoscope.session.1.", and so on, and its
               // part is "kinetoscope.session.1": see RecordingWindow.
  Site = 11,   // u32 id, the numbers of a SpanSite in its order
};

struct EntryHeader {
  uint32_t type;   // Entry
  uint32_t bytes;  // of the payload, without padding
};

}  // namespace kinetoscope
