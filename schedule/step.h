#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace isthmus {

// What a step does. docs/schedule.md has the full semantics.
enum class StepKind : std::uint8_t {
  kSend,     // src -> message to group rank `peer`
  kRecv,     // message from group rank `peer` -> dst
  kCopy,     // src -> dst
  kReduce,   // dst = src[0] op src[1] op ... in local-rank order (see Step::count), or dst op src
  kPublish,  // makes everything before it visible: this rank's progress line `line` = value
  kAwait,    // waits until line `line` of local ranks [peer, peer + count) is >= value
};

inline constexpr int kStepKindCount = 6;

// Operands of one Reduce: what the kernels take at once.
inline constexpr std::uint32_t kReduceOperandsMax = 64;

// Where bytes live. Input and output are the caller's and are addressed by mark (see Geometry);
// the others are addressed in units of one piece. Mapped spaces can be read by every rank of the
// node, and are written by their owner only.
enum class Space : std::uint8_t {
  kNone,
  kInput,       // caller's, read only (may be the same memory as the output: in place)
  kOutput,      // caller's; written only after every signature that can reach this rank was seen
  kScratch,     // private to this rank and operation
  kLine,        // mapped: payload of the announcement line, kLinePayloadBytes
  kSlot,        // mapped: the group's small slot of this sequence number, kSlotBytes
  kStage,       // mapped: staging memory leased for this operation
  kPeerInput,   // exposed: another local rank's kInput, read only, by marks of that rank
  kPeerOutput,  // exposed: another local rank's kOutput; written by a Reduce into kEveryone's
};

constexpr bool is_mapped(Space space) {
  return space >= Space::kLine && space <= Space::kStage;
}

// A caller's buffer that other ranks read. Its rank's operation lasts until they have.
constexpr bool is_exposed(Space space) {
  return space >= Space::kPeerInput;
}

// Spaces of which every rank of the node has one, this rank's included.
constexpr bool has_owner(Space space) {
  return is_mapped(space) || is_exposed(space);
}

// How the ranks of a node read each other's exposed buffers. All of a group's ranks do it in one
// way, or the operation is done by messages.
enum class Exposure : std::uint8_t {
  kNone,    // not at all
  kMapped,  // by loads: the buffers lie in memory that every rank of the node maps
  kPulled,  // by copies between processes (process_vm_readv): any memory; no operand of a Reduce
};

// Progress lines that a mapped schedule may use. Line 0 is the announcement of the operation: its
// value is 1, and awaiting it also compares signatures.
inline constexpr int kProgressLines = 4;
inline constexpr std::uint8_t kAnnounceLine = 0;

// As the owner of a destination: every local rank, this one included.
inline constexpr std::uint32_t kEveryone = 0xffffffffU;

// A position: a mark of the caller's buffers, or a unit of scratch, line, slot or stage. For spaces
// with an owner `local` is the owner's local rank (index among the ranks of this node in the
// group).
struct Place {
  Space space = Space::kNone;
  std::uint32_t local = 0;
  std::uint32_t at = 0;

  bool operator==(const Place&) const = default;
};

// An exposed position as its owner calls it.
constexpr Place owner_place(const Place& place) {
  return {place.space == Space::kPeerInput ? Space::kInput : Space::kOutput, 0, place.at};
}

// One step of one rank. Plain data, no pointers: bound to memory only when it runs.
//   Send/Recv: `peer` is a group rank, `value` the number of the message between the two ranks.
//   Reduce:    with count > 0 and a src with an owner the operands are src of local ranks
//   [src.local,
//              src.local + count), in that order, this rank's own operand taken from
//              `own_input ? input at begin : src`;
//              with count > 0 and src in scratch the operands are the count consecutive spans of
//              (end - begin) units from src.at on, in that order; own_input takes operand number
//              src.local from input at begin instead;
//              with count == 0 the operands are dst, then src; with src_first src, then dst.
//              A dst in kPeerOutput of kEveryone: the result goes to that mark of all outputs.
//   Copy:      src and dst may be the same bytes (in place): nothing to do then.
//   Await:     count == 0 waits for nobody: a joint of its dependencies.
//   Send/Recv without a place (Space::kNone) are signals of 0 bytes.
//   finish:    the last reduction of these elements: AVG divides here.
// Marks [begin, end) give the length in the caller's data: 0 bytes where begin == end.
struct Step {
  StepKind kind = StepKind::kCopy;
  std::uint8_t line = 0;
  bool finish : 1 = false;
  bool own_input : 1 = false;
  bool src_first : 1 = false;
  std::uint32_t peer = 0;
  std::uint32_t count = 0;
  std::uint32_t value = 0;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  Place dst;
  Place src;

  bool operator==(const Step&) const = default;
};

static_assert(sizeof(Step) <= 48);
static_assert(std::is_trivially_copyable_v<Step>);

std::string_view step_kind_name(StepKind kind);
std::string_view space_name(Space space);

// "Recv from rank 3, message 2, marks [4, 5) -> scratch 1": as printed, traced and shown in errors.
std::string describe(const Step& step);

}  // namespace isthmus
