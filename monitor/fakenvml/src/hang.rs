//! Calls that never return.
//!
//! Rule: a call sleeps for ever, which any signal that ends the process ends too; or the kernel holds it (state D), as
//! it holds a thread inside a driver that waits for dead hardware. For that the thread starts a child that never runs
//! a program, and waits for it where the kernel lets only a deadly signal through. The child dies with the thread.
//! Not done here: a wait that SIGKILL does not end, which only a driver can do.
#![allow(unsafe_code)]

use std::time::Duration;

pub(crate) fn forever(kernel: bool) -> ! {
    if kernel {
        // SAFETY: the child has its own copy of this memory and makes system calls only, until it dies with its parent.
        unsafe {
            let flags = libc::CLONE_VFORK | libc::SIGCHLD;
            if libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                loop {
                    libc::pause();
                }
            }
        }
    }
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
