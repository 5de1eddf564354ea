#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/result.h"
#include "transport/endpoint.h"

namespace isthmus {

// What can be seen of the ranks on this machine from outside: their shared-memory segments, found
// through /proc. Everything is copied with bounds checked and read with pread(2), so that a segment
// that is cut short, changes or vanishes meanwhile costs a line of the report and nothing more.
// Advisory: fields are read while their owners write them. Plain values.

std::string_view process_state_name(ProcessState state);

// One rank in one group.
struct RankInGroup {
  int world_rank = -1;
  int group_rank = -1;
  int pid = 0;  // as seen from here; of a dead rank its own number
  ProcessState process = ProcessState::kUnknown;
  std::uint32_t sequence = 0;  // of the operation below
  bool has_operation = false;  // the text of this operation is still there
  OperationInfo operation;
  std::string phase;           // "outside", "running", "waiting", "failed" or "left"
  std::int64_t phase_ns = -1;  // how long; -1 unknown
  std::uint32_t step = 0;      // first step that waits
  std::vector<int> waits_for;  // world ranks; empty: nobody, or unknown
  std::uint32_t finished = 0;  // every operation up to this one is over
  std::string failure;         // the sentence that ended its group, when there is one
};

struct GroupSeen {
  std::string name;
  std::uint64_t key = 0;
  std::uint32_t ranks = 0;           // in all, on whatever machine
  std::vector<RankInGroup> members;  // on this machine, by group rank
};

// A rank's memory that it shares with its node to move large data through.
struct StagingSeen {
  int world_rank = -1;
  int pid = 0;                   // as in RankInGroup
  std::uint64_t bytes = 0;       // most that it will use
  std::uint64_t used_bytes = 0;  // the machine's memory behind it now
};

// Staging of every rank on this machine; not seen as below.
Result<std::vector<StagingSeen>> scan_staging();

// Groups of every job on this machine, in a stable order. Not seen: processes that /proc does not
// show or lets nobody but another user look into (other users, other containers), and ranks that
// were refused shared memory. Fails when /proc cannot be read.
Result<std::vector<GroupSeen>> scan_ranks();

}  // namespace isthmus
