//! Questions to a driver that may never answer, asked before there are lanes.
//!
//! Rule: the question goes to a thread of its own; if it has not answered within [`PATIENCE`] of real
//! time, the caller goes on without it, and the thread stays in the driver until the process ends.
//! Lanes need none of this: they have threads of their own, which the recorder watches.
//! Source of the number: opening and trying one GPU takes well under a second on an H200; a driver
//! that wakes a sleeping GPU takes two or three (assumed).

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long an answer may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The answer, or `None` if there is none in time.
pub(crate) fn answer<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    answer_within(PATIENCE, ask)
}

/// The same for a question that may take longer.
pub(crate) fn answer_within<T: Send + 'static>(
    patience: Duration,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (send, receive) = mpsc::channel();
    let asked = thread::Builder::new().name("ask".into()).spawn(move || {
        // Nobody may be waiting any more.
        let _ = send.send(ask());
    });
    asked.ok()?;
    receive.recv_timeout(patience).ok()
}

/// The answers to several questions asked at the same time, in their order. Whoever has not answered when nobody has for
/// [`PATIENCE`] is given up.
pub(crate) fn answers<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
    asks: impl IntoIterator<Item = F>,
) -> Vec<Option<T>> {
    let (send, receive) = mpsc::channel();
    let mut answers = Vec::new();
    for (index, ask) in asks.into_iter().enumerate() {
        let send = send.clone();
        let asked = thread::Builder::new().name("ask".into()).spawn(move || {
            let _ = send.send((index, ask()));
        });
        drop(asked);
        answers.push(None);
    }
    drop(send);
    // Ends too when every thread has answered, or could not be started.
    while let Ok((index, answer)) = receive.recv_timeout(PATIENCE) {
        answers[index] = Some(answer);
    }
    answers
}

/// What did not happen, in words.
pub(crate) fn no_answer() -> String {
    format!("a call into the driver has not returned for {} s", PATIENCE.as_secs())
}
