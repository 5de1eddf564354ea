// Goal: the low word of an operation says which sequence number it was made of, however far a group
// has come. Method: numbers around the places where words and numbers wrap.

#include <cstdint>

#include <gtest/gtest.h>

#include "transport/endpoint.h"

namespace isthmus {
namespace {

std::uint32_t word_of(std::uint32_t sequence) {
  return static_cast<std::uint32_t>(make_operation(7, sequence, false));
}

TEST(Operation, TheWholeSequenceIsTheNearestOfItsWord) {
  for (const std::uint32_t sequence :
       {1U, 1000U, 0x7ffffff0U, 0x7fffffffU, 0x80000000U, 0x80000001U, 0xfffffff8U, 0xffffffffU}) {
    EXPECT_FALSE(is_transfer(word_of(sequence)));
    for (std::uint32_t ahead = 0; ahead < 40; ++ahead) {
      EXPECT_EQ(whole_sequence(word_of(sequence), sequence + ahead), sequence);
      EXPECT_EQ(whole_sequence(word_of(sequence), sequence - ahead), sequence);
    }
  }
}

TEST(Operation, ATransferIsToldByItsWord) {
  const auto word = static_cast<std::uint32_t>(make_operation(7, 5, true));
  EXPECT_TRUE(is_transfer(word));
  EXPECT_EQ(transfer_tag(word), 5U);
}

}  // namespace
}  // namespace isthmus
