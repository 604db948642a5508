//! stub
use crate::cli::ExportArgs;
use anyhow::Result;
pub fn run(_: &ExportArgs) -> Result<u8> {
    Ok(0)
}
