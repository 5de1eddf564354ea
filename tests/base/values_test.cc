// Goal: the small values everything is built on keep their promises.
// Method: direct calls; a forked child for what concerns forks.

#include <cerrno>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/fork.h"
#include "base/hash.h"
#include "base/mapping.h"
#include "base/nearest.h"
#include "base/result.h"

namespace isthmus {
namespace {

Result<int> half(int number) {
  if (number % 2 != 0) {
    return Error{.code = Code::kInvalidArgument, .message = "odd"};
  }
  return number / 2;
}

Result<int> quarter(int number) {
  ISTHMUS_ASSIGN(const int once, half(number));
  ISTHMUS_ASSIGN(const int twice, half(once));
  return twice;
}

TEST(Result, CarriesValuesAndErrors) {
  EXPECT_EQ(*quarter(8), 2);
  const Result<int> failed = quarter(6);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, Code::kInvalidArgument);
  EXPECT_EQ(failed.error().to_string(), "invalid argument: odd");
}

TEST(Result, SystemErrorsNameTheErrno) {
  const Error error = system_error(Code::kIo, ENOSPC, "cannot write");
  EXPECT_NE(error.message.find("No space left on device"), std::string::npos) << error.message;
  EXPECT_EQ(error.sys_errno, ENOSPC);
}

TEST(Deadline, SaturatesInsteadOfOverflowing) {
  constexpr std::int64_t kCenturyMs = 36500LL * 24 * 3600 * 1000;
  EXPECT_FALSE(Deadline::after_ms(kCenturyMs).passed(monotonic_ns()));
  EXPECT_FALSE(Deadline::after_ms(Deadline::kNever).passed(monotonic_ns()));
  EXPECT_TRUE(Deadline::after_ms(0).passed(monotonic_ns()));
  EXPECT_GT(Deadline().left_ms(monotonic_ns()), kCenturyMs);
}

TEST(Nearest, FindsSmallEditsOnly) {
  const std::vector<std::string> names = {"--minbytes", "--maxbytes", "--iters"};
  EXPECT_EQ(nearest("--minbyte", names), "--minbytes");
  EXPECT_EQ(nearest("--itres", names), "--iters");
  EXPECT_EQ(nearest("--colour", names), "");
}

TEST(Hash, MixesAndTellsOrder) {
  EXPECT_NE(mix64(1), mix64(2));
  EXPECT_NE(hash_combine(hash_combine(0, 1), 2), hash_combine(hash_combine(0, 2), 1));
  EXPECT_NE(hash_bytes("ab"), hash_bytes("ba"));
}

TEST(Fd, ClosesOnceAndMoves) {
  Fd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(first.valid());
  const int number = first.get();
  Fd second = std::move(first);
  EXPECT_FALSE(first.valid());  // NOLINT(bugprone-use-after-move): what moving leaves is the test
  EXPECT_EQ(second.get(), number);
  second.reset();
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

TEST(Fork, AChildGetsNeitherDescriptorsNorMappings) {
  install_fork_handlers();
  const Fd listed(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Result<Mapping> memory = Mapping::create_private(4096);
  ASSERT_TRUE(memory.ok());
  const pid_t child = ::fork();
  if (child == 0) {
    const bool closed = ::fcntl(listed.get(), F_GETFD) == -1 && errno == EBADF;
    // write() looks at the address without a fault.
    const Fd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    int pipes[2] = {-1, -1};
    const bool piped = ::pipe(pipes) == 0;
    const bool unmapped = ::write(pipes[1], memory->data(), 1) == -1 && errno == EFAULT;
    ::_exit(closed && piped && unmapped && forked_child() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_FALSE(forked_child());
}

}  // namespace
}  // namespace isthmus
