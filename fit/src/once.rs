//! A value that follows from the others of a struct and is worked out when it is first asked for.
//!
//! Rule: it takes no part in comparisons, copies and files; a copy works it out again.

use std::sync::OnceLock;

/// The value, once it was asked for.
pub(crate) struct Once<T>(OnceLock<T>);

impl<T> Once<T> {
    /// The value; `make` gives it the first time.
    pub(crate) fn get(&self, make: impl FnOnce() -> T) -> &T {
        self.0.get_or_init(make)
    }
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> Clone for Once<T> {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl<T> PartialEq for Once<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> std::fmt::Debug for Once<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Once")
    }
}
