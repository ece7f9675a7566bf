#include "annotations.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>
#include <utility>

#include "../spans/nesting.h"
#include "fields.h"

namespace kinetoscope {
namespace {

constexpr std::size_t kStrings = 0, kStacks = 1;

std::size_t length(const PerfettoNumbers& values) {
  return std::visit([](const auto& column) { return column.size(); }, values);
}

bool is_rows(PerfettoFact::Kind kind) {
  return kind == PerfettoFact::Kind::String || kind == PerfettoFact::Kind::Text ||
         kind == PerfettoFact::Kind::Stack || kind == PerfettoFact::Kind::Object;
}

}  // namespace

void PerfettoDraft::intern(uint32_t field, uint32_t number, std::string_view text) {
  entry_.clear();
  entry_.number(perfetto::interned::kNumber, number);
  entry_.bytes(perfetto::interned::kText, text);
  interned.message(field, entry_);
}

PerfettoAnnotations::PerfettoAnnotations(std::span<const std::string> strings, const PerfettoStacks& stacks)
    : strings_(strings), stacks_(stacks) {
  const std::size_t frames = stacks.file.size();
  if (stacks.parent.size() != stacks.frame.size() || stacks.function.size() != frames ||
      stacks.line.size() != frames) {
    throw BadColumns("PerfettoWriter: the columns of the stacks or frames have different lengths");
  }
  add_texts({}, strings.size());
  add_texts({}, stacks.parent.size());
}

std::size_t PerfettoAnnotations::add_texts(std::vector<std::string> texts, std::size_t rows) {
  texts_.push_back({std::move(texts), InternedRows(rows)});
  return texts_.size() - 1;
}

std::size_t PerfettoAnnotations::name_row(std::string name) {
  const auto known = std::find(names_.begin(), names_.end(), name);
  if (known != names_.end()) return static_cast<std::size_t>(known - names_.begin());
  names_.push_back(std::move(name));
  return names_.size() - 1;
}

PerfettoAnnotations::BoundFact PerfettoAnnotations::bind(PerfettoFact fact) {
  BoundFact bound{.kind = fact.kind, .name = name_row(strict_utf8(fact.name)), .values = fact.values};
  if (is_rows(fact.kind) && !std::holds_alternative<std::span<const int32_t>>(fact.values))
    throw BadColumns("PerfettoWriter: the rows of the fact " + fact.name + " are not int32");
  if (fact.kind == PerfettoFact::Kind::String) bound.texts = kStrings;
  if (fact.kind == PerfettoFact::Kind::Stack) bound.texts = kStacks;
  if (fact.kind == PerfettoFact::Kind::Text) {
    for (std::string& text : fact.texts) text = strict_utf8(text);
    const std::size_t rows = fact.texts.size();
    bound.texts = add_texts(std::move(fact.texts), rows);
  }
  if (fact.kind == PerfettoFact::Kind::Object) {
    bound.objects = objects_.size();
    objects_.emplace_back(fact.texts, static_cast<uint32_t>(bound.name), names_);
    const std::vector<std::string>& texts = objects_.back().texts();
    bound.texts = add_texts(texts, texts.size());
  }
  return bound;
}

std::size_t PerfettoAnnotations::take(std::vector<PerfettoFacts> facts, std::size_t events) {
  std::vector<BoundFacts> bound;
  for (PerfettoFacts& group : facts) {
    if (!std::is_sorted(group.rows.begin(), group.rows.end()))
      throw BadColumns("PerfettoWriter: the rows of facts are not ascending");
    BoundFacts& taken = bound.emplace_back(BoundFacts{group.rows, group.of_every_row, {}});
    for (PerfettoFact& fact : group.facts) {
      if (length(fact.values) != (group.of_every_row ? events : group.rows.size()))
        throw BadColumns("PerfettoWriter: the fact " + fact.name + " does not have one value per row");
      taken.facts.push_back(bind(std::move(fact)));
    }
  }
  kinds_.push_back(std::move(bound));
  name_numbers_ = InternedRows(names_.size());
  shown_in_.assign(names_.size(), 0);
  return kinds_.size() - 1;
}

void PerfettoAnnotations::show(std::size_t kind, std::size_t row, PerfettoDraft& draft) {
  ++event_;
  for (BoundFacts& group : kinds_[kind]) {
    if (group.of_every_row) {
      for (const BoundFact& fact : group.facts) show_fact(fact, row, draft);
      continue;
    }
    const auto wanted = static_cast<int64_t>(row);
    while (group.next < group.rows.size() && group.rows[group.next] < wanted) ++group.next;
    for (; group.next < group.rows.size() && group.rows[group.next] == wanted; ++group.next) {
      for (const BoundFact& fact : group.facts) show_fact(fact, group.next, draft);
    }
  }
}

void PerfettoAnnotations::show_fact(const BoundFact& fact, std::size_t at, PerfettoDraft& draft) {
  if (!is_rows(fact.kind)) {
    show_number(fact, at, draft);
    return;
  }
  const int32_t row = std::get<std::span<const int32_t>>(fact.values)[at];
  if (row < (fact.kind == PerfettoFact::Kind::String ? 1 : 0)) return;
  show_row(fact, static_cast<std::size_t>(row), draft);
}

void PerfettoAnnotations::show_number(const BoundFact& fact, std::size_t at, PerfettoDraft& draft) {
  using Kind = PerfettoFact::Kind;
  std::visit(
      [&](const auto& column) {
        using Number = typename std::remove_cvref_t<decltype(column)>::value_type;
        const Number value = column[at];
        if (fact.kind == Kind::Flag ? value == 0 : false) return;
        if constexpr (!std::is_unsigned_v<Number>) {
          if (fact.kind == Kind::Number && value == -1) return;
        }
        if constexpr (std::is_floating_point_v<Number>) {
          if (fact.kind == Kind::Number && std::isnan(value)) return;
        }
        begin(fact.name, draft);
        if (fact.kind == Kind::Flag) {
          annotation_.number(perfetto::annotation::kBoolean, 1);
        } else if constexpr (std::is_floating_point_v<Number>) {
          annotation_.real(perfetto::annotation::kReal, value);
        } else if (fact.kind == Kind::Pointer) {
          annotation_.number(perfetto::annotation::kPointer, static_cast<uint64_t>(value));
        } else {
          annotation_.number(
              std::is_unsigned_v<Number> ? perfetto::annotation::kUnsigned : perfetto::annotation::kInteger,
              static_cast<uint64_t>(static_cast<int64_t>(value)));
        }
        end(draft);
      },
      fact.values);
}

void PerfettoAnnotations::show_row(const BoundFact& fact, std::size_t row, PerfettoDraft& draft) {
  if (fact.kind != PerfettoFact::Kind::Object) {
    const TextTable& table = texts_[fact.texts];
    const bool nothing =
        fact.kind == PerfettoFact::Kind::Text && row < table.texts.size() && table.texts[row].empty();
    if (row < table.numbers.size() && !nothing) show_text(fact.name, fact.texts, row, draft);
    return;
  }
  const ObjectMembers& objects = objects_[fact.objects];
  if (row >= objects.size()) return;
  for (const ObjectMembers::Member& member : objects.of(row)) {
    if (shown_in_[member.name] == event_) continue;
    switch (member.type) {
      case ObjectMembers::Type::Text:
        show_text(member.name, fact.texts, member.bits, draft);
        continue;
      case ObjectMembers::Type::Real:
        begin(member.name, draft);
        annotation_.real(perfetto::annotation::kReal, std::bit_cast<double>(member.bits));
        break;
      case ObjectMembers::Type::Boolean:
        begin(member.name, draft);
        annotation_.number(perfetto::annotation::kBoolean, member.bits);
        break;
      case ObjectMembers::Type::Integer:
      case ObjectMembers::Type::Unsigned:
        begin(member.name, draft);
        annotation_.number(member.type == ObjectMembers::Type::Integer ? perfetto::annotation::kInteger
                                                                       : perfetto::annotation::kUnsigned,
                           member.bits);
    }
    end(draft);
  }
}

void PerfettoAnnotations::show_text(std::size_t name, std::size_t table, std::size_t row,
                                    PerfettoDraft& draft) {
  begin(name, draft);
  const InternedRows::Number number = texts_[table].numbers.number(row, draft.sequence, last_text_);
  if (number.fresh) {
    if (table == kStacks) {
      draft.intern(perfetto::interned::kTexts, number.number,
                   stack_text(stacks_, strings_, static_cast<int32_t>(row)));
    } else {
      draft.intern(perfetto::interned::kTexts, number.number,
                   table == kStrings ? strings_[row] : texts_[table].texts[row]);
    }
  }
  annotation_.number(perfetto::annotation::kText, number.number);
  end(draft);
}

void PerfettoAnnotations::begin(std::size_t name, PerfettoDraft& draft) {
  const InternedRows::Number number = name_numbers_.number(name, draft.sequence, last_name_);
  if (number.fresh) draft.intern(perfetto::interned::kAnnotationNames, number.number, names_[name]);
  shown_in_[name] = event_;
  annotation_.clear();
  annotation_.number(perfetto::annotation::kName, number.number);
}

void PerfettoAnnotations::end(PerfettoDraft& draft) {
  draft.event.message(perfetto::event::kAnnotation, annotation_);
}

}  // namespace kinetoscope
