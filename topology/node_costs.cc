#include "topology/node_costs.h"

#include <algorithm>
#include <cmath>

namespace isthmus {

namespace {

bool good(double value) {
  return std::isfinite(value) && value >= 0.0;
}

}  // namespace

RateCurve RateCurve::flat(double us_per_mib) {
  RateCurve curve;
  curve.bytes = NodeCosts::kFootprints;
  curve.us_per_mib.fill(us_per_mib);
  return curve;
}

double RateCurve::at(double footprint_bytes) const {
  const auto above = std::upper_bound(bytes.begin(), bytes.end(), footprint_bytes);
  if (above == bytes.begin()) {
    return us_per_mib.front();
  }
  if (above == bytes.end()) {
    return us_per_mib.back();
  }
  const std::size_t right = static_cast<std::size_t>(above - bytes.begin());
  const std::size_t left = right - 1;
  const double way = std::log(footprint_bytes / bytes[left]) / std::log(bytes[right] / bytes[left]);
  return us_per_mib[left] + way * (us_per_mib[right] - us_per_mib[left]);
}

bool RateCurve::sane() const {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const double before = i == 0 ? 0.0 : bytes[i - 1];
    if (!std::isfinite(bytes[i]) || bytes[i] <= before || !good(us_per_mib[i])) {
      return false;
    }
  }
  return true;
}

double NodeCosts::wait_us(int ranks) const {
  return sharing > 1.0 ? switch_us * sharing : flag_us + flag_rank_us * std::max(ranks - 2, 0);
}

bool NodeCosts::sane() const {
  return good(flag_us) && good(flag_rank_us) && good(switch_us) && good(look_us) && copy.sane() &&
         read.sane() && combine.sane() && reduce.sane() && pull.sane() && std::isfinite(sharing) &&
         sharing >= 1.0;
}

}  // namespace isthmus
