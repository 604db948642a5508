//! The journal: rows since the last segment, as they arrived.
//!
//! Rule: a file is a row of frames `magic, length (u32), CRC-32 of the payload (u32), payload`,
//! numbers little-endian, payload one [`Frame`] in postcard's form. The first frame is the header.
//! A frame counts if its checksum fits and it decodes.
//!
//! Cases: bytes that are no frame are skipped up to the next frame that counts. Bytes after the
//! last one are a torn tail, which every kill may leave; bytes before it are damage.
//!
//! Not done here: keeping the order of what damage took. postcard names no fields, so any change to
//! a row type needs a new schema version. A new kind of frame goes at the end, where it leaves the others as they are.

use gpumon_core::header::{Header, SCHEMA_VERSION};
use gpumon_core::rows::{CounterRow, EventRow, FastRow, ProcessRow, RingRow, SlowRow};
use serde::{Deserialize, Serialize};
use std::path::Path;

use super::error::StoreError;

const MAGIC: [u8; 4] = *b"\xF6gmJ";
const HEAD: usize = 12;
/// Rows in one frame at most: what one damaged frame costs.
pub(super) const FRAME_ROWS: usize = 4096;

/// What a frame holds.
#[derive(Debug, Deserialize)]
#[doc(hidden)]
pub enum Frame {
    Header(FileHeader),
    Fast(Vec<FastRow>),
    Ring(Vec<RingRow>),
    Slow(Vec<SlowRow>),
    Counter(Vec<CounterRow>),
    Events(Vec<EventRow>),
    Process(Vec<ProcessRow>),
}

/// [`Frame`] with borrowed rows; same variants in the same order.
#[derive(Serialize)]
pub(super) enum FrameRef<'a> {
    Header(&'a FileHeader),
    Fast(&'a [FastRow]),
    Ring(&'a [RingRow]),
    Slow(&'a [SlowRow]),
    Counter(&'a [CounterRow]),
    Events(&'a [EventRow]),
    Process(&'a [ProcessRow]),
}

/// The first frame of a journal.
#[derive(Debug, Serialize, Deserialize)]
#[doc(hidden)]
pub struct FileHeader {
    pub(super) schema: u32,
    /// `recording.json` as it was at the start, to restore it from.
    pub(super) recording: String,
}

/// Appends a frame to `out`.
pub(super) fn encode(frame: &impl Serialize, out: &mut Vec<u8>) -> Result<(), StoreError> {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[0; HEAD - MAGIC.len()]);
    let bad = |what: String| {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, what);
        StoreError::io(Path::new("journal"), "encode rows for the", source)
    };
    postcard::serialize_with_flavor(frame, Bytes(out)).map_err(|e| bad(e.to_string()))?;
    let payload = &out[start + HEAD..];
    let len = u32::try_from(payload.len()).map_err(|e| bad(e.to_string()))?;
    let crc = crc32fast::hash(payload);
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
    out[start + 8..start + HEAD].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// Lets postcard append to a vector that exists.
struct Bytes<'a>(&'a mut Vec<u8>);

impl postcard::ser_flavors::Flavor for Bytes<'_> {
    type Output = ();

    fn try_extend(&mut self, data: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(data);
        Ok(())
    }

    fn try_push(&mut self, data: u8) -> postcard::Result<()> {
        self.0.push(data);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// The start of a journal of this recording.
pub(super) fn file_header(header: &Header) -> Result<Vec<u8>, StoreError> {
    let mut out = Vec::new();
    let header = FileHeader { schema: SCHEMA_VERSION, recording: header.to_json() };
    encode(&FrameRef::Header(&header), &mut out)?;
    Ok(out)
}

/// Bytes of a journal that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bad {
    pub(super) offset: usize,
    pub(super) bytes: usize,
    /// Nothing that counts follows.
    pub(super) tail: bool,
}

/// Gives every frame that counts to `each`, in order, and returns what lies between and after them.
pub(super) fn parse(bytes: &[u8], mut each: impl FnMut(Frame)) -> Vec<Bad> {
    let mut bad = Vec::new();
    // Up to here everything is accounted for; from here on a frame is looked for.
    let (mut done, mut at) = (0, 0);
    while let Some(found) = find_magic(&bytes[at..]) {
        at += found;
        let Some((frame, end)) = frame_at(bytes, at) else {
            at += 1;
            continue;
        };
        if at > done {
            bad.push(Bad { offset: done, bytes: at - done, tail: false });
        }
        each(frame);
        (done, at) = (end, end);
    }
    if done < bytes.len() {
        bad.push(Bad { offset: done, bytes: bytes.len() - done, tail: true });
    }
    bad
}

fn find_magic(bytes: &[u8]) -> Option<usize> {
    bytes.windows(MAGIC.len()).position(|w| w == MAGIC)
}

fn frame_at(bytes: &[u8], at: usize) -> Option<(Frame, usize)> {
    let number = |from: usize| {
        let four = bytes.get(from..from + 4)?;
        Some(u32::from_le_bytes(four.try_into().ok()?))
    };
    let (len, crc) = (number(at + 4)?, number(at + 8)?);
    let start = at + HEAD;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    let payload = bytes.get(start..end)?;
    if crc32fast::hash(payload) != crc {
        return None;
    }
    let (frame, rest) = postcard::take_from_bytes(payload).ok()?;
    rest.is_empty().then_some((frame, end))
}
