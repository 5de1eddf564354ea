#include "transport/tcp/rails.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

namespace isthmus::tcp {
namespace {

const Candidate* find(const Address& address, const IpAddress& ip) {
  const auto found = std::find_if(
      address.candidates.begin(), address.candidates.end(),
      [&](const Candidate& each) { return each.family == ip.family && each.ip == ip.ip; });
  return found == address.candidates.end() ? nullptr : &*found;
}

}  // namespace

std::vector<Rail> rails_between(const Address& ours, const Address& theirs, const IpAddress& near,
                                const IpAddress& far, bool named) {
  std::vector<Rail> out;
  const Candidate* first_from = find(ours, near);
  const Candidate* first_to = find(theirs, far);
  if (first_to == nullptr) {
    return out;
  }
  Rail first;
  first.to = *first_to;
  if (first_from != nullptr && !first_from->loopback) {
    first.bound = true;
    first.from = *first_from;
  }
  out.push_back(first);
  if (far.loopback || first_from == nullptr) {
    return out;
  }
  std::set<std::uint8_t> used_ours = {first_from->interface};
  std::set<std::uint8_t> used_theirs = {first_to->interface};
  const auto pair_up = [&](auto&& fits) {
    for (const Candidate& from : ours.candidates) {
      for (const Candidate& to : theirs.candidates) {
        if (!from.loopback && !to.loopback && from.family == to.family && fits(from, to) &&
            !used_ours.contains(from.interface) && !used_theirs.contains(to.interface)) {
          used_ours.insert(from.interface);
          used_theirs.insert(to.interface);
          out.push_back({.bound = true, .from = from, .to = to});
        }
      }
    }
  };
  pair_up([](const Candidate& from, const Candidate& to) { return same_subnet(from, to); });
  if (named) {
    pair_up([](const Candidate& /*from*/, const Candidate& /*to*/) { return true; });
  }
  return out;
}

std::string to_string(const Rail& rail) {
  return fmt::format("{} to {}",
                     rail.bound ? to_string(static_cast<const IpAddress&>(rail.from)) : "here",
                     to_string(rail.to));
}

}  // namespace isthmus::tcp
