#pragma once

#include "base/result.h"
#include "collectives/communicator.h"
#include "topology/topology.h"

namespace isthmus {

// Measures a message between the first two nodes of a group that share a rack, if any do, while its
// other ranks are idle: alpha from 8 bytes there and back, beta from 4 MiB, medians. All ranks call
// it and get the same. The group has two nodes and more.
Result<LinkClass> probe_between(Communicator& group);

// The same between the first two racks, by as many pairs of nodes at once as both have: together
// they fill the racks' links. The group has two racks and more.
Result<LinkClass> probe_across(Communicator& group);

}  // namespace isthmus
