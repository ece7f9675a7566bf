#include "interpreter_view.h"

#include <atomic>
#include <cstring>

#include "probing_table.h"
#include "utf8.h"

namespace kinetoscope {
namespace {

// More threads than any program has.
constexpr size_t kMostThreads = 4096;
// Frames of C code are skipped; the limit ends cycles of them.
constexpr uint32_t kMostSkipped = 4096;
// Paths and qualified names are shorter; larger values are not valid lengths.
constexpr size_t kMostCharacters = size_t{1} << 14;
constexpr size_t kMostBytes = size_t{1} << 22;

const void* untagged(const void* pointer) {
  return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(pointer) &
                                       kinetoscope_layout.pointer_mask);
}

// Reads memory that is never freed, but may be written concurrently.
const void* pointer_at(const void* base, uint32_t offset) {
  auto* at = const_cast<char*>(static_cast<const char*>(base)) + offset;
  return std::atomic_ref(*reinterpret_cast<const void**>(at)).load(std::memory_order_relaxed);
}

// Owners of frames: a thread's stack, a generator, a frame object, or (KINETOSCOPE_FIRST_C_OWNER) C code.
constexpr uint8_t kOwnedByThread = 0;
constexpr uint8_t kMostOwners = 5;

}  // namespace

uint64_t SeenCode::fingerprint() const {
  return (hash_bytes(file.data(), file.size()) * 31 + hash_bytes(function.data(), function.size())) * 31 +
         ((uint64_t{first_line} << 32) | line);
}

uint32_t line_at(const std::string& table, uint32_t first_line, int64_t offset) {
  if (offset < 0) return first_line;
  // Each entry: a byte with its top bit set, its kind in the next four, and how many instructions it covers,
  // minus 1, in the last three; then bytes without the top bit. The first number of a kind that has numbers
  // is by how much the line differs from that of the entry before.
  constexpr int kNoLine = 15, kNoColumns = 13, kLong = 14, kOneLine = 10;
  int64_t line = first_line, end = 0;
  for (size_t at = 0; at < table.size();) {
    const auto head = static_cast<uint8_t>(table[at++]);
    const int kind = (head >> 3) & 15;
    if (kind == kLong || kind == kNoColumns) {
      uint64_t number = 0;
      for (uint32_t shift = 0; at < table.size() && shift < 63; shift += 6) {
        const auto part = static_cast<uint8_t>(table[at++]);
        number |= uint64_t{part & 63u} << shift;
        if ((part & 64) == 0) break;
      }
      line += (number & 1) != 0 ? -static_cast<int64_t>(number >> 1) : static_cast<int64_t>(number >> 1);
    } else if (kind >= kOneLine && kind < kNoColumns) {
      line += kind - kOneLine;
    }
    end += 2 * ((head & 7) + 1);
    if (offset < end) return kind == kNoLine || line < 0 ? 0 : static_cast<uint32_t>(line);
    while (at < table.size() && (static_cast<uint8_t>(table[at]) & 0x80) == 0) ++at;
  }
  return 0;
}

std::string InterpreterView::problem() {
  if (memory_.way() == MemoryReader::Way::None)
    return "the system allows neither process_vm_readv() nor /proc/self/mem, which read the stacks of Python";
  memory_.forget();
  const void* newest = nullptr;
  const void* interpreter = nullptr;
  const void* holder = nullptr;
  int32_t locked = 0;
  const bool fits =
      field(here_.interpreter, kinetoscope_layout.newest_thread, newest) && newest == here_.newest_thread &&
      field(here_.this_thread, kinetoscope_layout.thread_interpreter, interpreter) &&
      interpreter == here_.interpreter && field(here_.gil, kinetoscope_layout.gil_holder, holder) &&
      holder == here_.this_thread && field(here_.gil, kinetoscope_layout.gil_locked, locked) && locked == 1;
  return fits ? ""
              : "this build of Python keeps its threads elsewhere than the one the recorder was built for";
}

bool InterpreterView::threads(std::vector<PythonThread>& found) {
  found.clear();
  const void* state = nullptr;
  if (!field(here_.interpreter, kinetoscope_layout.newest_thread, state)) return false;
  while (state != nullptr && found.size() < kMostThreads) {
    const void* interpreter = nullptr;
    const void* next = nullptr;
    PythonThread thread{state, 0, 0};
    unsigned long system = 0;
    if (!field(state, kinetoscope_layout.thread_interpreter, interpreter) ||
        interpreter != here_.interpreter || !field(state, kinetoscope_layout.thread_number, thread.number) ||
        !field(state, kinetoscope_layout.thread_system, system) ||
        !field(state, kinetoscope_layout.thread_next, next)) {
      return false;
    }
    thread.system = static_cast<uint32_t>(system);
    if (thread.system != 0) found.push_back(thread);
    state = next;
  }
  return true;
}

bool InterpreterView::is_only_thread(const void* state) const {
  // The newest comes first.
  return pointer_at(here_.interpreter, kinetoscope_layout.newest_thread) == state;
}

const void* InterpreterView::frame_of_main(const void* state) const {
  const void* frame = pointer_at(state, kinetoscope_layout.thread_frame);
  if (kinetoscope_layout.with_cframe == 0 || frame == nullptr) return frame;
  return pointer_at(frame, kinetoscope_layout.cframe_current);
}

bool InterpreterView::frames(const PythonThread& thread, uint32_t most, std::vector<SeenFrame>& found) {
  found.clear();
  uint64_t number = 0;
  const void* frame = nullptr;
  // The memory of this thread's state may have been reused for another thread.
  if (!field(thread.state, kinetoscope_layout.thread_number, number) || number != thread.number) return false;
  if (!field(thread.state, kinetoscope_layout.thread_frame, frame)) return false;
  if (kinetoscope_layout.with_cframe != 0 && frame != nullptr &&
      !field(frame, kinetoscope_layout.cframe_current, frame)) {
    return false;
  }
  uint8_t owner = kOwnedByThread;
  for (uint32_t skipped = 0; frame != nullptr;) {
    if (found.size() == most) return true;
    SeenFrame seen{};
    const void* previous = nullptr;
    if (!field(frame, kinetoscope_layout.owner, owner) || owner >= kMostOwners ||
        !field(frame, kinetoscope_layout.code, seen.code) ||
        !field(frame, kinetoscope_layout.instruction, seen.instruction) ||
        !field(frame, kinetoscope_layout.first_local, seen.first_local) ||
        !field(frame, kinetoscope_layout.previous, previous)) {
      return false;
    }
    if (owner < KINETOSCOPE_FIRST_C_OWNER) {
      seen.code = untagged(seen.code);
      seen.first_local = untagged(seen.first_local);
      found.push_back(seen);
    } else if (++skipped > kMostSkipped) {
      return false;
    }
    frame = previous;
  }
  // A chain that ends in a generator changed while it was read: the generator has just yielded.
  return owner == kOwnedByThread || owner >= KINETOSCOPE_FIRST_C_OWNER;
}

uint64_t InterpreterView::identity(const SeenFrame& frame) {
  const void* parts[3] = {};
  int32_t first_line = 0;
  if (!is_of(frame.code, here_.code_type) || !field(frame.code, kinetoscope_layout.code_function, parts[0]) ||
      !field(frame.code, kinetoscope_layout.code_file, parts[1]) ||
      !field(frame.code, kinetoscope_layout.code_lines, parts[2]) ||
      !field(frame.code, kinetoscope_layout.code_first_line, first_line)) {
    return 0;
  }
  return hash_bytes(reinterpret_cast<const char*>(parts), sizeof(parts)) + static_cast<uint32_t>(first_line);
}

bool InterpreterView::code(const SeenFrame& frame, SeenCode& found) {
  int64_t units = 0;
  const void* function = nullptr;
  const void* file = nullptr;
  const void* lines = nullptr;
  int32_t first_line = 0;
  if (!is_of(frame.code, here_.code_type) || !field(frame.code, kinetoscope_layout.object_size, units) ||
      !field(frame.code, kinetoscope_layout.code_function, function) ||
      !field(frame.code, kinetoscope_layout.code_file, file) ||
      !field(frame.code, kinetoscope_layout.code_lines, lines) ||
      !field(frame.code, kinetoscope_layout.code_first_line, first_line)) {
    return false;
  }
  const int64_t offset = static_cast<const char*>(frame.instruction) -
                         (static_cast<const char*>(frame.code) + kinetoscope_layout.code_first_instruction);
  // A frame that has not started is at one instruction before the first.
  if (units < 0 || offset < -2 || offset >= 2 * units) return false;
  std::string table;
  if (!text(function, found.function) || !text(file, found.file) || !bytes(lines, table)) return false;
  found.first_line = first_line > 0 ? static_cast<uint32_t>(first_line) : 0;
  // What Python adds by itself, such as the start of a module's code, has no line, or line 0.
  const uint32_t line = line_at(table, found.first_line, offset);
  found.line = line == 0 ? found.first_line : line;
  return true;
}

bool InterpreterView::gil_is_elsewhere(const PythonThread& thread) {
  const void* holder = nullptr;
  int32_t locked = 0;
  memory_.forget();
  if (!field(here_.gil, kinetoscope_layout.gil_holder, holder) ||
      !field(here_.gil, kinetoscope_layout.gil_locked, locked)) {
    return true;
  }
  return locked != 0 && holder != thread.state;
}

bool InterpreterView::is_of(const void* object, const void* type) {
  const void* own = nullptr;
  return object != nullptr && field(object, kinetoscope_layout.object_type, own) && own == type;
}

bool InterpreterView::text(const void* object, std::string& into) {
  into.clear();
  // Built-in code objects may have no names.
  if (object == nullptr) return true;
  std::byte header[256];
  if (kinetoscope_layout.text_bytes > sizeof(header) || !is_of(object, here_.text_type) ||
      !memory_.read(object, header, kinetoscope_layout.text_bytes)) {
    return false;
  }
  const kinetoscope_text where = kinetoscope_text_of(header);
  if (where.characters == 0 || where.length > kMostCharacters ||
      (where.width != 1 && where.width != 2 && where.width != 4)) {
    return false;
  }
  std::string raw(where.length * where.width, '\0');
  if (!memory_.read(static_cast<const char*>(object) + where.characters, raw.data(), raw.size()))
    return false;
  for (size_t at = 0; at < where.length; ++at) {
    uint32_t point = 0;
    std::memcpy(&point, raw.data() + at * where.width, where.width);
    append_utf8(point, into);
  }
  return true;
}

bool InterpreterView::bytes(const void* object, std::string& into) {
  into.clear();
  if (object == nullptr) return true;
  int64_t length = 0;
  if (!is_of(object, here_.bytes_type) || !field(object, kinetoscope_layout.object_size, length) ||
      length < 0 || static_cast<size_t>(length) > kMostBytes) {
    return false;
  }
  into.assign(static_cast<size_t>(length), '\0');
  return memory_.read(static_cast<const char*>(object) + kinetoscope_layout.bytes_data, into.data(),
                      into.size());
}

}  // namespace kinetoscope
