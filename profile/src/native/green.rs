//! Green contexts: some of the GPU's SMs for one process, without MPS, MIG or any privilege.
//!
//! Rule: the driver hands SMs out in groups, at least so many and a multiple of so many, by compute capability; the GPU as a
//! whole is always one of the levels. A context of another number of SMs than asked for is refused.
//! Cases: drivers before CUDA 12.4 have none; their functions must not be looked for, because cudarc panics then.
//! Source: CUDA driver API, "Green Contexts", `cuDevSmResourceSplitByCount`: 4 and multiples of 2 on 8.x, 8 and multiples of 8
//! from 9.0 on.
#![allow(unsafe_code, reason = "the driver's functions are C")]

use std::mem::MaybeUninit;

use cudarc::driver::sys;

use super::gpu::{CudaError, Doing};

/// The driver that knows green contexts, in CUDA's numbering.
const LEAST_DRIVER: i32 = 12_040;

/// Least number and step of a green context's SMs on a GPU of that compute capability.
const fn groups(major: i32) -> (u16, u16) {
    match major {
        ..=7 => (2, 2),
        8 => (4, 2),
        _ => (8, 8),
    }
}

/// SM counts nearest to these percentages of a GPU with `of` SMs, ascending and without repeats.
pub fn green_levels(percents: &[u8], of: u16, major: i32) -> Vec<u16> {
    let (least, step) = groups(major);
    let level = |pct: &u8| {
        let sms = f64::from(of) * f64::from(*pct) / 100.0;
        let whole = (sms / f64::from(step)).round() as u16 * step;
        if sms >= f64::from(of) - f64::from(step) / 2.0 || whole > of { of } else { whole.max(least).min(of) }
    };
    let mut levels: Vec<u16> = percents.iter().map(level).collect();
    levels.sort_unstable();
    levels.dedup();
    levels
}

/// A context of some SMs.
pub(super) struct Green {
    context: sys::CUgreenCtx,
}

impl Green {
    /// A green context of exactly `sms` SMs of a device whose primary context is current.
    pub(super) fn new(device: sys::CUdevice, sms: u16) -> Result<Self, CudaError> {
        let mut version = 0;
        // SAFETY: writes one number.
        unsafe { sys::cuDriverGetVersion(&raw mut version) }
            .result()
            .doing("asking for the driver's version")?;
        if version < LEAST_DRIVER {
            return Err(CudaError::Cannot(format!(
                "green contexts need a driver for CUDA 12.4 or newer, this one is for {}.{}; use MPS instead",
                version / 1_000,
                version % 1_000 / 10
            )));
        }
        let mut whole = MaybeUninit::<sys::CUdevResource>::zeroed();
        let mut part = MaybeUninit::<sys::CUdevResource>::zeroed();
        let (mut rest, mut count) = (MaybeUninit::<sys::CUdevResource>::zeroed(), 1);
        let (mut description, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let kind = sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        // SAFETY: the driver writes the resources, of which all are plain numbers, before they are read.
        let got = unsafe {
            sys::cuDeviceGetDevResource(device, whole.as_mut_ptr(), kind)
                .result()
                .doing("asking for the SMs")?;
            let split = sys::cuDevSmResourceSplitByCount(
                part.as_mut_ptr(),
                &raw mut count,
                whole.as_ptr(),
                rest.as_mut_ptr(),
                0,
                u32::from(sms),
            );
            let all = whole.assume_init_ref().__bindgen_anon_1.sm.smCount;
            // The whole GPU is no part of itself.
            if all == u32::from(sms) {
                part = whole;
            } else {
                split.result().doing("taking some of the SMs")?;
            }
            part.assume_init_ref().__bindgen_anon_1.sm.smCount
        };
        if got != u32::from(sms) {
            return Err(CudaError::Cannot(format!(
                "a green context of {sms} SMs cannot be had; {got} could"
            )));
        }
        let flags = sys::CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM as u32;
        // SAFETY: the resource is the driver's; description and context are written before they are read.
        unsafe {
            sys::cuDevResourceGenerateDesc(&raw mut description, part.as_mut_ptr(), 1)
                .result()
                .doing("describing the SMs")?;
            sys::cuGreenCtxCreate(&raw mut context, description, device, flags)
                .result()
                .doing("making a green context")?;
        }
        Ok(Self { context })
    }

    /// It as a context to be made current.
    pub(super) fn context(&self) -> Result<sys::CUcontext, CudaError> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the green context lives as long as this does.
        unsafe { sys::cuCtxFromGreenCtx(&raw mut context, self.context) }.result().doing("entering it")?;
        Ok(context)
    }

    /// A stream whose kernels run on its SMs.
    pub(super) fn stream(&self) -> Result<sys::CUstream, CudaError> {
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: as above; the stream is written before it is read.
        unsafe { sys::cuGreenCtxStreamCreate(&raw mut stream, self.context, flags, 0) }
            .result()
            .doing("making its stream")?;
        Ok(stream)
    }
}

impl Drop for Green {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more; what the driver says does not matter then.
        let _ = unsafe { sys::cuGreenCtxDestroy(self.context) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_what_the_driver_hands_out() {
        assert_eq!(green_levels(&[14, 29, 43, 57, 100], 132, 9), [16, 40, 56, 72, 132]);
        assert_eq!(green_levels(&[1, 50, 99, 100], 108, 8), [4, 54, 106, 108]);
        assert_eq!(green_levels(&[1], 4, 9), [4], "a GPU smaller than a group is one level");
    }
}
