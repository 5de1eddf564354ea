#pragma once

#include <vector>

#include "transport/tcp/addresses.h"

namespace isthmus::tcp {

// A way between two ranks: an interface of ours and the address of the peer that it reaches.
struct Rail {
  bool bound = false;  // calls come from `from`; else from where the routing table says
  Candidate from;
  Candidate to;

  bool operator==(const Rail&) const = default;
};

// The rails to a peer, `first` (the ends of the connection that is there) being number 0, which is
// missing only where its far end is no address that the peer told. Each interface of either side
// serves one rail. Two interfaces make one where they share a subnet; with `named` (the user chose
// the interfaces) those that are left are paired in their order too, for networks that are routed.
// Whether a rail carries anything is seen when it is called. Loopback is a rail of its own.
std::vector<Rail> rails_between(const Address& ours, const Address& theirs, const IpAddress& near,
                                const IpAddress& far, bool named);

// "10.1.0.1 to 10.1.0.2:4711".
std::string to_string(const Rail& rail);

}  // namespace isthmus::tcp
