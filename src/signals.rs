//! Signals as messages.
//!
//! Rule: the first SIGINT, SIGTERM or SIGHUP is for the command to handle; a second SIGINT leaves at
//! once with 130. A signal says whether a person sent it through the terminal, in which case a child in
//! the foreground has got it too.

use std::sync::Arc;
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
    let ending = [SIGINT, SIGTERM, SIGHUP];
    let forwarded = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];
    let mut signals = match take {
        Take::Ending => SignalsInfo::<WithOrigin>::new(ending)?,
        Take::Forwarded => SignalsInfo::<WithOrigin>::new(forwarded)?,
    };
    let (send, receive) = unbounded();
    thread::Builder::new().name("signals".into()).spawn(move || {
        let mut interrupts = 0;
        for origin in signals.forever() {
            interrupts += i32::from(origin.signal == SIGINT);
            if interrupts > 1 {
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
