// The numbers of the fields of a Perfetto trace that we write, as perfetto/trace/*.proto assigns them.
#pragma once

#include <cstdint>

namespace kinetoscope::perfetto {

constexpr uint32_t kTracePacket = 1;

namespace packet {
constexpr uint32_t kChromeEvents = 5, kClockSnapshot = 6, kTimestamp = 8, kSequenceId = 10, kTrackEvent = 11,
                   kInternedData = 12, kSequenceFlags = 13, kDefaults = 59, kTrackDescriptor = 60,
                   kFirstOnSequence = 87;
// Values of kSequenceFlags.
constexpr uint64_t kStateCleared = 1, kNeedsState = 2;
}  // namespace packet

namespace clock_snapshot {
constexpr uint32_t kClock = 1, kClockId = 1, kTimestamp = 2, kIsIncremental = 3;
// Numbers of clocks: from 64 on each sequence may have its own.
constexpr uint64_t kRealtime = 1, kBoottime = 6, kOfSequence = 64;
}  // namespace clock_snapshot

namespace defaults {
constexpr uint32_t kTrackEvent = 11, kTrackUuid = 11, kClockId = 58;
}  // namespace defaults

namespace metadata {
constexpr uint32_t kEntry = 2, kName = 1, kText = 2;
}  // namespace metadata

namespace track {
constexpr uint32_t kUuid = 1, kName = 2, kProcess = 3, kThread = 4, kParentUuid = 5, kCounter = 8,
                   kChildOrdering = 11, kSiblingOrder = 12, kDescription = 14;
constexpr uint32_t kProcessPid = 1, kProcessName = 6;
constexpr uint32_t kThreadPid = 1, kThreadTid = 2, kThreadSortIndex = 3, kThreadName = 5;
constexpr uint32_t kCounterUnit = 3, kCounterUnitName = 6;
// Values of kChildOrdering and kCounterUnit.
constexpr uint64_t kExplicitOrder = 3, kBytesUnit = 3;
}  // namespace track

namespace event {
constexpr uint32_t kCategory = 3, kAnnotation = 4, kType = 9, kName = 10, kTrackUuid = 11, kCounterValue = 30,
                   kLocation = 34, kRealCounterValue = 44, kFlow = 47, kEndingFlow = 48;
// Values of kType.
constexpr uint64_t kSliceBegin = 1, kSliceEnd = 2, kInstant = 3, kCounter = 4;
}  // namespace event

namespace annotation {
constexpr uint32_t kName = 1, kBoolean = 2, kUnsigned = 3, kInteger = 4, kReal = 5, kPointer = 7, kText = 17;
}  // namespace annotation

namespace interned {
constexpr uint32_t kCategories = 1, kEventNames = 2, kAnnotationNames = 3, kLocations = 4, kTexts = 29;
constexpr uint32_t kNumber = 1, kText = 2;
constexpr uint32_t kLocationFile = 2, kLocationFunction = 3, kLocationLine = 4;
}  // namespace interned

}  // namespace kinetoscope::perfetto
