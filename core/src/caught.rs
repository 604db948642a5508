//! Calls into libraries that panic on broken input.
//!
//! Rule: a panic within [`caught`] becomes an answer of `None`, and nothing is printed about it; panics elsewhere, on
//! other threads too, are told as ever.
//! Not done here: what ends the process at once (a stack that overflows, memory that cannot be had).

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

static HOOK: Once = Once::new();

/// What `call` gives; `None` if it panicked. What it changed before is for the caller to throw away.
pub fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    HOOK.call_once(|| {
        let told = take_hook();
        set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                told(panic);
            }
        }));
    });
    let before = QUIET.replace(true);
    let answer = catch_unwind(AssertUnwindSafe(call));
    QUIET.set(before);
    answer.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_no_answer() {
        assert_eq!(caught(|| 7), Some(7));
        assert_eq!(caught(|| [1, 2, 3].iter().position(|i| *i == 4).unwrap()), None);
        assert!(!QUIET.get());
    }
}
