// What the schema of an operator says about it, read once.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "memory.h"

namespace dry {
namespace {
using c10::OperatorHandle;

// What is known of an operator from its schema.
struct Operator {
  std::string name;
  int64_t number = 0;
  bool is_view = false;         // the result shares memory with an input, and nothing is written
  bool only_writes = false;     // every result is an argument that was written to
  bool runs_on_host = false;    // a kernel of its own for the CPU, which would touch memory
  bool is_product = false;      // cuBLAS
  bool reads_copies = false;
  bool marks = false;
  std::vector<bool> is_out, is_written;
};

// Products of cuBLAS, and kernels that read a copy of what has gaps between its elements; Python says their names.
std::unordered_set<std::string> products, reads_copies;
const std::unordered_set<std::string> CHOOSING{"aten::topk", "aten::sort", "aten::argsort", "aten::argmax", "aten::argmin",
                                               "aten::multinomial"};
// These mark whole numbers in floating point: routers of experts count the marks, so that their values are kept as those of whole numbers.
const std::unordered_set<std::string> MARKS{"aten::zero_", "aten::fill_", "aten::scatter", "aten::scatter_"};
const std::unordered_set<std::string> SUMS_UP{"aten::max", "aten::amax", "aten::sum", "aten::any", "aten::clone", "aten::add"};
// Results of these say that all is well when nothing is written to them.
const std::unordered_set<std::string> LEAVES_VALUES{"aten::_amp_foreach_non_finite_check_and_unscale_"};

Operator described(const OperatorHandle& handle) {
  Operator found;
  const auto& schema = handle.schema();
  const auto& full = handle.operator_name();
  found.name = full.name;
  std::string label = full.name;
  if (auto at_colons = label.find("::"); at_colons != std::string::npos) label.replace(at_colons, 2, ".");
  label += "." + (full.overload_name.empty() ? std::string("default") : full.overload_name);
  found.number = number_of_operator(label);
  bool writes = false;
  for (const auto& argument : schema.arguments()) {
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    writes |= written;
    found.is_written.push_back(written);
    found.is_out.push_back(argument.is_out());
  }
  bool all_written = !schema.returns().empty() || writes, any_alias = false;
  for (const auto& result : schema.returns()) {
    const bool aliases = result.alias_info() != nullptr;
    any_alias |= aliases;
    all_written &= aliases && result.alias_info()->isWrite();
  }
  found.only_writes = writes && all_written;
  found.is_view = any_alias && !writes;
  found.runs_on_host = handle.hasKernelForDispatchKey(c10::DispatchKey::CPU) || found.name == "aten::copy_";
  found.marks = MARKS.count(found.name) > 0;
  found.reads_copies = reads_copies.count(found.name) > 0;
  found.is_product = products.count(found.name) > 0;
  return found;
}

const Operator& about(const OperatorHandle& handle) {
  thread_local std::unordered_map<const void*, Operator> seen;
  const void* key = &handle.schema();
  auto found = seen.find(key);
  if (found == seen.end()) found = seen.emplace(key, described(handle)).first;
  return found->second;
}

}  // namespace
}  // namespace dry
