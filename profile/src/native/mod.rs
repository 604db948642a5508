//! Nets that run on an NVIDIA GPU without PyTorch: matrix products, convolutions and passes over memory, described in TOML.
//!
//! ```text
//! net.toml → net (layers) → batch (what the GPU is told) → model (memory, a CUDA graph) on gpu (context, kernels)
//!                                                             ↑
//!                            lines on standard input → serve (the worker protocol)
//! ```
//!
//! Rule: one process serves one net in one share, as any worker does (docs/worker-protocol.md); gpumon starts itself for it. The
//! share comes from its environment: MPS and MIG by the driver's variables, a green context by `GPUMON_GREEN_SMS`.
//! Cases: without a driver, on a GPU older than Ampere, or with a driver that knows no green contexts, it says so and ends.

use std::path::Path;

pub mod blas;
pub mod gpu;
mod green;
pub mod model;
pub mod net;
pub mod serve;

pub use green::green_levels;

/// Nets that come with gpumon, by name.
pub const NETS: &[(&str, &str)] = &[
    ("convnet", include_str!("../../nets/convnet.toml")),
    ("transformer", include_str!("../../nets/transformer.toml")),
    ("stream", include_str!("../../nets/stream.toml")),
];

/// Why a net cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetFileError {
    /// It is neither one that comes along nor a file.
    #[error(
        "`native:{found}`: there is no such net; expected {expected}, or a file whose name ends with .toml"
    )]
    Unknown {
        /// What was given.
        found: String,
        /// What there is.
        expected: String,
    },
    /// The file cannot be read.
    #[error("`{path}` cannot be read: {message}")]
    Unreadable {
        /// The file.
        path: String,
        /// What the system says.
        message: String,
    },
    /// It describes no net.
    #[error("`{path}`: {error}")]
    Net {
        /// The file.
        path: String,
        /// What is wrong.
        error: net::NetError,
    },
}

/// The net of that name, or of that file if the name ends with `.toml`.
pub fn net_of(name: &str) -> Result<net::Net, NetFileError> {
    if let Some((_, text)) = NETS.iter().find(|(known, _)| *known == name) {
        return net::Net::parse(text).map_err(|error| NetFileError::Net { path: name.into(), error });
    }
    if Path::new(name).extension().is_none_or(|e| e != "toml") {
        let names: Vec<_> = NETS.iter().map(|(name, _)| format!("`native:{name}`")).collect();
        return Err(NetFileError::Unknown { found: name.into(), expected: names.join(", ") });
    }
    let text = std::fs::read_to_string(name)
        .map_err(|e| NetFileError::Unreadable { path: name.into(), message: e.to_string() })?;
    net::Net::parse(&text).map_err(|error| NetFileError::Net { path: name.into(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nets_are_found_by_name_or_file() {
        for (name, _) in NETS {
            assert!(net_of(name).is_ok(), "{name}");
        }
        assert!(net_of("resnet").unwrap_err().to_string().contains("expected `native:convnet`"));
        assert!(net_of("/no/net.toml").unwrap_err().to_string().contains("cannot be read"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("net.toml");
        std::fs::write(&path, "[[block]]\nlayers = 1").unwrap();
        let error = net_of(path.to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("net.toml") && error.contains("line 2"), "{error}");
    }
}
