//! Spoiled copies of good inputs.

use rand::rngs::StdRng;
use rand::{Rng, RngExt};

/// Numbers at the edges of types and formats.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_ffff,
];
/// Pieces that text formats trip over.
const WORDS: [&str; 18] = [
    "null",
    "NaN",
    "inf",
    "-inf",
    "1e999",
    "-1",
    "1e-320",
    "18446744073709551616",
    "\"",
    "\\u0000",
    "{",
    "}",
    "[",
    "]",
    "\u{202e}",
    "\n",
    "=",
    "[[",
];
/// No input grows beyond this, bytes.
const SIZE_MAX: usize = 1 << 20;

/// One to six changes of `input`, which may take pieces from `other`.
pub fn mutated(input: &[u8], other: &[u8], rng: &mut StdRng) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..rng.random_range(1..=6) {
        change(&mut bytes, other, rng);
    }
    bytes.truncate(SIZE_MAX);
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], rng: &mut StdRng) {
    let at = rng.random_range(0..=bytes.len());
    let length = rng.random_range(1..=64).min(bytes.len() - at);
    match rng.random_range(0..10) {
        0 if at < bytes.len() => bytes[at] ^= 1 << rng.random_range(0..8),
        1 if at < bytes.len() => bytes[at] = rng.next_u32() as u8,
        2 => {
            let edge = EDGES[rng.random_range(0..EDGES.len())];
            let width = [1, 2, 4, 8][rng.random_range(0..4)].min(bytes.len() - at);
            bytes[at..at + width].copy_from_slice(&edge.to_le_bytes()[..width]);
        }
        3 => bytes.truncate(at),
        4 => drop(bytes.drain(at..at + length)),
        5 => {
            let piece = bytes[at..at + length].to_vec();
            bytes.splice(at..at, piece);
        }
        6 => {
            let random: Vec<u8> = (0..rng.random_range(1..16)).map(|_| rng.next_u32() as u8).collect();
            bytes.splice(at..at, random);
        }
        7 if !other.is_empty() => {
            let from = rng.random_range(0..other.len());
            let piece = &other[from..(from + rng.random_range(1..256)).min(other.len())];
            let end = (at + piece.len()).min(bytes.len());
            bytes.splice(at..end, piece.iter().copied());
        }
        8 => {
            let word = WORDS[rng.random_range(0..WORDS.len())];
            bytes.splice(at..at, word.bytes());
        }
        _ => number(bytes, at, rng),
    }
}

/// Replaces the digits at or behind `at` by an edge.
fn number(bytes: &mut Vec<u8>, at: usize, rng: &mut StdRng) {
    let Some(from) = bytes[at..].iter().position(u8::is_ascii_digit).map(|p| at + p) else { return };
    let end = bytes[from..].iter().position(|b| !b.is_ascii_digit()).map_or(bytes.len(), |p| from + p);
    let edge = EDGES[rng.random_range(0..EDGES.len())];
    bytes.splice(from..end, edge.to_string().bytes());
}
