// Goal: the state of a process is what the kernel says. Method: a forked child that stops itself,
// goes on and is killed; waitid tells when it has.

#include "base/process.h"

#include <csignal>

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace isthmus {
namespace {

TEST(Process, StateFollowsTheProcess) {
  EXPECT_EQ(process_state(::getpid()), ProcessState::kRunning);
  EXPECT_EQ(process_state(-1), ProcessState::kDead);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::alarm(60);
    ::raise(SIGSTOP);
    for (;;) {
      ::pause();
    }
  }
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WSTOPPED | WNOWAIT), 0);
  EXPECT_EQ(process_state(child), ProcessState::kStopped);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(process_state(child), ProcessState::kDead);  // a zombie until it is waited for
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(process_state(child), ProcessState::kDead);
}

}  // namespace
}  // namespace isthmus
