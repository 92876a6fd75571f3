// Memory of the pretended card and large host memory that is never touched, with the log of what the card gave and took back.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <string>

namespace dry {

// One allocation.  `values`: whether its bytes are real memory that holds what the program would find there.
// `guessed`: some of these values stand for ones that nobody has.  `all_no`: they would be answers to a question, all of them no.
struct Block {
  void* data = nullptr;
  int64_t id = -1;
  int64_t n_bytes = 0;
  int64_t stream = 0;
  bool on_card = false;
  bool real = false;
  bool known = false;
  bool guessed = false;
  bool all_no = false;
  bool other_stream = false;
};

enum Kind : int64_t { FREE = 0, ALLOC = 1, EMPTY_CACHE = 2, FREE_REQUESTED = 3 };

// What the log holds of one event; Python reads it as rows of nine numbers.  `node`: the sequence number of the autograd node that
// runs, -1 for one that accumulates a gradient, -2 outside.  `source`: the block of the operator's first tensor, -1 for none.  `device`: the card of what is allocated.
struct Event {
  int64_t kind, id, n_bytes, stream, place, node, op, source, device;
};

// Tensors of at most so many elements carry values: whole numbers decide about sizes, other ones hardly do.
constexpr int64_t MOST_INTEGERS = int64_t(1) << 20;
constexpr int64_t MOST_FLOATS = 1024;
constexpr int64_t REAL_BYTES = int64_t(8) << 20;
constexpr int64_t HOLLOW_BYTES = int64_t(2) << 20;

Block* block_of(const at::Tensor& tensor);
c10::Allocator* card_allocator();
c10::Allocator* host_allocator();

// The operator that runs: the outermost one below autograd.
int64_t number_of_operator(const std::string& name);
struct InOperator {
  InOperator(int64_t number, int64_t source);
  ~InOperator();
};

int64_t current_stream();
int64_t current_device();
int64_t take(int64_t n_bytes, int64_t op);
void give_back(int64_t id, int64_t n_bytes);
void record_stream(const void* context, int64_t stream);

// The card does all that it was given in one order, as far behind the host as that lets it be: it has come to the last event that the
// host has waited for.  That streams overtake each other is left out.
void record_event(int64_t event);
void forget_event(int64_t event);
bool has_come(int64_t event);
void wait_for_event(int64_t event);
void wait_for_card();
}  // namespace dry
