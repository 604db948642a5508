//! The names that a shared library exports, and copies of it that lack some.
//!
//! Rule: a symbol is found by its name in the dynamic string table. In a copy, the first letter of a
//! name is another one, so that a look-up finds its hash and then a name that does not match. Nothing
//! else moves; the function is still there for calls from within.
//! Not done here: 32-bit and big-endian files.
//! Source: ELF-64 object file format, section headers; `.dynsym`, `.dynstr`.

use std::ops::Range;

/// Why a library's names cannot be read or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// Not a 64-bit little-endian ELF file, or cut off.
    #[error("not a 64-bit little-endian ELF shared library, or cut off")]
    Format,
    /// A name that is not there.
    #[error("the library has no symbol `{0}`")]
    NoSymbol(String),
}

const SHT_DYNSYM: u32 = 11;

fn number<const N: usize>(file: &[u8], at: usize) -> Result<u64, ElfError> {
    let bytes = file.get(at..at + N).ok_or(ElfError::Format)?;
    Ok(bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
}

/// Section header: type, file range, linked section.
fn section(file: &[u8], index: usize) -> Result<(u32, Range<usize>, usize), ElfError> {
    let (table, size) = (number::<8>(file, 40)? as usize, number::<2>(file, 58)? as usize);
    let at = table + index * size;
    let start = number::<8>(file, at + 24)? as usize;
    let length = number::<8>(file, at + 32)? as usize;
    Ok((number::<4>(file, at + 4)? as u32, start..start + length, number::<4>(file, at + 40)? as usize))
}

/// Where each defined dynamic symbol's name lies in the file.
fn names(file: &[u8]) -> Result<Vec<Range<usize>>, ElfError> {
    if file.get(..6) != Some(&[0x7F, b'E', b'L', b'F', 2, 1]) {
        return Err(ElfError::Format);
    }
    for index in 0..number::<2>(file, 60)? as usize {
        let (kind, symbols, strings) = section(file, index)?;
        if kind != SHT_DYNSYM {
            continue;
        }
        let strings = section(file, strings)?.1;
        let entry = |at: usize| -> Result<Option<Range<usize>>, ElfError> {
            let start = strings.start + number::<4>(file, at)? as usize;
            let text = file.get(start..strings.end).ok_or(ElfError::Format)?;
            let length = text.iter().position(|&b| b == 0).ok_or(ElfError::Format)?;
            let defined = number::<2>(file, at + 6)? != 0;
            Ok((defined && length > 0).then_some(start..start + length))
        };
        return symbols.step_by(24).filter_map(|at| entry(at).transpose()).collect();
    }
    Ok(Vec::new())
}

/// Names that a library (or program) exports, sorted.
pub fn dynamic_names(file: &[u8]) -> Result<Vec<String>, ElfError> {
    let mut found: Vec<_> =
        names(file)?.into_iter().map(|at| String::from_utf8_lossy(&file[at]).into_owned()).collect();
    found.sort_unstable();
    Ok(found)
}

/// A library without these symbols.
pub fn without_symbols(file: &[u8], symbols: &[&str]) -> Result<Vec<u8>, ElfError> {
    let places = names(file)?;
    let mut copy = file.to_vec();
    for &symbol in symbols {
        let place = places.iter().find(|at| &file[(*at).clone()] == symbol.as_bytes());
        let place = place.ok_or_else(|| ElfError::NoSymbol(symbol.into()))?;
        copy[place.start] = b'_';
    }
    Ok(copy)
}
