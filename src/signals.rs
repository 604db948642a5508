//! Signals as messages.
//!
//! Rule: SIGINT, SIGTERM and SIGHUP are for the command to handle; where they end a recording, a second
//! SIGINT leaves at once with 130. A SIGHUP that was ignored when we started (nohup) stays ignored. A signal says whether a person sent it through the terminal, in which case a child in
//! the foreground has got it too.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use crossbeam_channel::{Receiver, unbounded};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Sent};

/// A signal that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// Whether a process sent it to this process alone, rather than the terminal to the whole group.
    pub sent_to_us_alone: bool,
}

/// Which signals to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// Those that end a recording.
    Ending,
    /// Also those that are passed on to a command.
    Forwarded,
}

/// Starts taking signals. A file that may not grow further becomes an error of the write instead of a
/// signal that ends the process.
pub fn listen(take: Take) -> std::io::Result<Receiver<Signal>> {
    signal_hook::flag::register(SIGXFSZ, Arc::default())?;
    let mut wanted = vec![SIGINT, SIGTERM];
    if !is_ignored(SIGHUP) {
        wanted.push(SIGHUP);
    }
    if take == Take::Forwarded {
        wanted.extend([SIGQUIT, SIGUSR1, SIGUSR2]);
    }
    let mut signals = SignalsInfo::<WithOrigin>::new(wanted)?;
    let (send, receive) = unbounded();
    thread::Builder::new().name("signals".into()).spawn(move || {
        let mut interrupts = 0;
        for origin in signals.forever() {
            interrupts += i32::from(origin.signal == SIGINT);
            if take == Take::Ending && interrupts > 1 {
                std::process::exit(130);
            }
            let sent_to_us_alone =
                matches!(origin.cause, Cause::Sent(Sent::User | Sent::TKill | Sent::Queue));
            if send.send(Signal { number: origin.signal, sent_to_us_alone }).is_err() {
                break;
            }
        }
    })?;
    Ok(receive)
}

/// A flag that a signal to end sets, for commands that stop between two steps of their own. A second SIGINT leaves at
/// once with 130.
pub fn stop_flag() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register_conditional_shutdown(SIGINT, 130, stop.clone())?;
    let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

/// Whether whoever started this process had a signal ignored.
#[allow(unsafe_code)]
fn is_ignored(signal: i32) -> bool {
    // SAFETY: the struct holds only integers and pointers; all zeros is a value of it, and a null new
    // action makes sigaction only tell the present one.
    unsafe {
        let mut present: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut present) == 0 && present.sa_sigaction == libc::SIG_IGN
    }
}
