//! The worker protocol's messages (docs/worker-protocol.md): JSON lines, one an ask, one an answer.
//!
//! Rule: an answer is taken only if it is one line of at most a MiB, an object, and all times in it are finite and above 0;
//! keys that are not known are left alone, so that workers can be newer than gpumon.

use serde::{Deserialize, Serialize};

/// Version of the protocol.
pub(crate) const VERSION: u32 = 1;
/// No line is longer, bytes.
pub(super) const LINE_MAX: usize = 1 << 20;
/// No batch takes longer, µs.
const BATCH_MAX_US: f64 = 3.6e9;

/// What a worker is asked.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub(super) enum Ask {
    Context,
    Load { batch: u32 },
    Unload,
    Batch { id: u64 },
    Run { seconds: f64 },
    Stop,
    Quit,
}

/// What it answers. Which keys are there depends on the ask.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct Answer {
    pub(super) version: Option<u32>,
    pub(super) name: Option<String>,
    pub(super) green: Option<bool>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) note: Option<String>,
    pub(super) batch_us: Option<f64>,
    pub(super) batches_us: Option<Vec<f64>>,
    pub(super) done: Option<bool>,
    pub(super) error: Option<Trouble>,
}

/// What went wrong in the worker.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Trouble {
    pub(super) kind: TroubleKind,
    pub(super) message: String,
}

/// Sorted by what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TroubleKind {
    /// The point is impossible.
    DoesNotFit,
    /// This ask failed, the next may not.
    Failed,
    /// Nothing more will work.
    Fatal,
}

impl Ask {
    /// The line, with its end.
    pub(super) fn line(&self) -> String {
        // A message has string keys and finite numbers only, which always is JSON.
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

impl Answer {
    /// The answer of a line, or what is wrong with it.
    pub(super) fn parse(line: &[u8]) -> Result<Self, String> {
        let shown = || {
            let text: String = String::from_utf8_lossy(line).chars().take(80).collect();
            format!("`{}`", text.trim_end())
        };
        if line.len() > LINE_MAX {
            return Err(format!("a line of more than {LINE_MAX} bytes"));
        }
        let answer: Self = serde_json::from_slice(line).map_err(|e| format!("{} ({e})", shown()))?;
        let times = answer.batches_us.iter().flatten().chain(&answer.batch_us);
        match times.copied().find(|us| !(*us > 0.0 && *us <= BATCH_MAX_US)) {
            Some(odd) => Err(format!("a batch of {odd} µs in {}", shown())),
            None => Ok(answer),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn asks_are_these_lines() {
        for (ask, line) in [
            (Ask::Context, r#"{"op":"context"}"#),
            (Ask::Load { batch: 8 }, r#"{"op":"load","batch":8}"#),
            (Ask::Unload, r#"{"op":"unload"}"#),
            (Ask::Batch { id: 7 }, r#"{"op":"batch","id":7}"#),
            (Ask::Run { seconds: 2.5 }, r#"{"op":"run","seconds":2.5}"#),
            (Ask::Stop, r#"{"op":"stop"}"#),
            (Ask::Quit, r#"{"op":"quit"}"#),
        ] {
            assert_eq!(ask.line(), format!("{line}\n"));
        }
    }

    #[test]
    fn answers_are_read_and_odd_ones_named() {
        let answer = Answer::parse(br#"{"batches_us":[1.5,2],"done":true,"newer":{}}"#).unwrap();
        assert_eq!((answer.batches_us, answer.done), (Some(vec![1.5, 2.0]), Some(true)));
        let trouble = Answer::parse(br#"{"error":{"kind":"does_not_fit","message":"too big"}}"#).unwrap();
        assert_eq!(trouble.error.unwrap().kind, TroubleKind::DoesNotFit);
        for (line, says) in [
            (&b"hello"[..], "`hello`"),
            (br#"{"batches_us":[0]}"#, "a batch of 0 µs"),
            (br#"{"batch_us":-1}"#, "a batch of -1 µs"),
            (br#"{"batches_us":[NaN]}"#, "NaN"),
            (br#"{"batch_us":1e300}"#, "µs in"),
            (br#"{"error":{"kind":"odd","message":""}}"#, "odd"),
        ] {
            let error = Answer::parse(line).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        assert!(Answer::parse(&vec![b' '; LINE_MAX + 1]).unwrap_err().contains("more than 1048576 bytes"));
    }

    proptest! {
        #[test]
        fn no_line_is_taken_that_holds_an_odd_time(line in proptest::collection::vec(any::<u8>(), 0..200), us in any::<f64>()) {
            let _ = Answer::parse(&line);
            let text = format!("{{\"batches_us\":[{us}]}}");
            if let Ok(answer) = Answer::parse(text.as_bytes()) {
                prop_assert!(answer.batches_us.unwrap().iter().all(|us| us.is_finite() && *us > 0.0));
            }
        }
    }
}
