// Which storage each tensor of an operator has, and in which version: notes of outermost operators.
#pragma once

#include <cstdint>

namespace at {
struct RecordFunction;
}

namespace kinetoscope {

class Session;
struct OpenSpan;
struct ThreadState;

// [owner thread, before the span's start is read] Notes the arguments of the operator that `span`, the
// innermost open one, is about; `overload` is its overload name, nullptr where it has no schema. Those of a
// backward pass are noted only where they may write to their arguments.
void note_argument_versions(ThreadState& thread, const at::RecordFunction& function, const char* overload,
                            OpenSpan& span);
// [owner thread] Writes these notes, once the span has its start.
void write_argument_versions(ThreadState& thread, Session& session, uint64_t tick);
// [any thread] How many operators have begun while these notes were written, since the recorder was loaded.
uint64_t operators_with_versions();
// [owner thread, when the operator ends] Writes the notes about its results, where its arguments were noted.
void write_result_versions(const at::RecordFunction& function);

}  // namespace kinetoscope
