//! cuBLAS, where it can be loaded.
//!
//! Rule: half precision in and out, sums in single precision, on tensor cores; a workspace of its own, so that graphs can hold
//! its kernels.
//! Cases: it is looked for first, by the names that the loader finds (`LD_LIBRARY_PATH` counts), because cudarc panics without it.
#![allow(unsafe_code, reason = "cuBLAS is C")]

use std::ffi::c_void;

use cudarc::cublas::{result, sys};
use cudarc::driver::result as driver;
use cudarc::driver::sys::{CUdeviceptr, CUstream};

pub use cudarc::cublas::result::CublasError as BlasError;

/// What NVIDIA recommends for Hopper.
const WORKSPACE: usize = 32 << 20;

/// cuBLAS in one stream.
pub struct Blas {
    handle: sys::cublasHandle_t,
    workspace: CUdeviceptr,
    version: i32,
}

impl Blas {
    /// It, or `None` if it is not there.
    pub(super) fn open(stream: CUstream) -> Result<Option<Self>, BlasError> {
        // SAFETY: loads and unloads the library; its initialisers are NVIDIA's own.
        if !unsafe { sys::is_culib_present() } {
            return Ok(None);
        }
        let handle = result::create_handle()?;
        let mut blas = Self { handle, workspace: 0, version: 0 };
        // SAFETY: a context is current, the stream is of it, and the workspace lives as long as the handle.
        unsafe {
            result::set_stream(handle, stream.cast())?;
            // Without it cuBLAS takes its own.
            if let Ok(workspace) = driver::malloc_sync(WORKSPACE) {
                blas.workspace = workspace;
                sys::cublasSetWorkspace_v2(handle, workspace as *mut c_void, WORKSPACE).result()?;
            }
            sys::cublasGetVersion_v2(handle, &raw mut blas.version).result()?;
        }
        Ok(Some(blas))
    }

    /// Its version.
    pub(super) fn version(&self) -> String {
        let v = self.version;
        format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100)
    }

    /// `c[m][n] = Σ a[m][k] · w[n][k]`, rows behind each other.
    pub(super) fn gemm(
        &self,
        (a, w, c): (CUdeviceptr, CUdeviceptr, CUdeviceptr),
        (m, n, k): (u64, u32, u32),
    ) -> Result<(), BlasError> {
        let (one, zero) = (1.0_f32, 0.0_f32);
        let half = sys::cudaDataType::CUDA_R_16F;
        // cuBLAS counts columns behind each other: what is c here is its transpose there.
        let (m, n, k) = (m as i32, n as i32, k as i32);
        // SAFETY: the caller has seen that the buffers hold these matrices.
        unsafe {
            result::gemm_ex(
                self.handle,
                sys::cublasOperation_t::CUBLAS_OP_T,
                sys::cublasOperation_t::CUBLAS_OP_N,
                n,
                m,
                k,
                (&raw const one).cast(),
                w as *const c_void,
                half,
                k,
                a as *const c_void,
                half,
                k,
                (&raw const zero).cast(),
                c as *mut c_void,
                half,
                n,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT_TENSOR_OP,
            )
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: both were made by `open`, and are given back once.
        unsafe {
            let _ = result::destroy_handle(self.handle);
            if self.workspace != 0 {
                let _ = driver::free_sync(self.workspace);
            }
        }
    }
}
