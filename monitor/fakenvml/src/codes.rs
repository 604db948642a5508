//! NVML's return codes, by name and number.
//!
//! Source: `nvmlReturn_t` in `nvml.h` of driver 580.

use std::ffi::CStr;

/// A return code other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u32);

/// What a call answers.
pub(crate) type Answer<T = ()> = Result<T, Code>;

macro_rules! codes {
    ($( $name:ident = $number:literal, $text:literal; )*) => {
        #[allow(dead_code, reason = "scripts name all of them")]
        impl Code { $( pub(crate) const $name: Self = Self($number); )* }

        /// The code of a name, with or without `NVML_ERROR_`.
        pub(crate) fn by_name(name: &str) -> Option<Code> {
            match name.strip_prefix("NVML_ERROR_").unwrap_or(name) {
                $( stringify!($name) => Some(Code($number)), )*
                _ => None,
            }
        }

        /// What `nvmlErrorString` says.
        pub(crate) fn text(code: u32) -> &'static CStr {
            match code {
                0 => c"Success",
                $( $number => $text, )*
                _ => c"Unknown Error",
            }
        }

        /// Names of all codes, for messages.
        pub(crate) const NAMES: &[&str] = &[$( stringify!($name) ),*];
    };
}

codes! {
    UNINITIALIZED = 1, c"Uninitialized";
    INVALID_ARGUMENT = 2, c"Invalid Argument";
    NOT_SUPPORTED = 3, c"Not Supported";
    NO_PERMISSION = 4, c"Insufficient Permissions";
    ALREADY_INITIALIZED = 5, c"Already Initialized";
    NOT_FOUND = 6, c"Not Found";
    INSUFFICIENT_SIZE = 7, c"Insufficient Size";
    INSUFFICIENT_POWER = 8, c"Insufficient External Power";
    DRIVER_NOT_LOADED = 9, c"Driver Not Loaded";
    TIMEOUT = 10, c"Timeout";
    IRQ_ISSUE = 11, c"Interrupt Request Issue";
    LIBRARY_NOT_FOUND = 12, c"NVML Shared Library Not Found";
    FUNCTION_NOT_FOUND = 13, c"Function Not Found";
    CORRUPTED_INFOROM = 14, c"Corrupted infoROM";
    GPU_IS_LOST = 15, c"GPU is lost";
    RESET_REQUIRED = 16, c"GPU requires reset";
    OPERATING_SYSTEM = 17, c"GPU access blocked by the operating system";
    LIB_RM_VERSION_MISMATCH = 18, c"Driver/library version mismatch";
    IN_USE = 19, c"In use by another client";
    MEMORY = 20, c"Insufficient Memory";
    NO_DATA = 21, c"No data";
    VGPU_ECC_NOT_SUPPORTED = 22, c"vGPU ECC not supported";
    INSUFFICIENT_RESOURCES = 23, c"Insufficient Resources";
    FREQ_NOT_SUPPORTED = 24, c"Frequency not supported";
    ARGUMENT_VERSION_MISMATCH = 25, c"Argument version mismatch";
    DEPRECATED = 26, c"Deprecated";
    NOT_READY = 27, c"Not ready";
    GPU_NOT_FOUND = 28, c"GPU not found";
    INVALID_STATE = 29, c"Invalid state";
    UNKNOWN = 999, c"Unknown Error";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_with_and_without_their_prefix() {
        assert_eq!(by_name("GPU_IS_LOST"), Some(Code(15)));
        assert_eq!(by_name("NVML_ERROR_GPU_IS_LOST"), Some(Code(15)));
        assert_eq!(by_name("SUCCESS"), None);
        assert!(NAMES.iter().all(|name| by_name(name).is_some()));
        assert_eq!(text(15), c"GPU is lost");
    }
}
