//! What this process has cost so far: the libc edge.
#![allow(unsafe_code)]

/// CPU time and memory of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    pub(super) cpu_s: f64,
    pub(super) max_rss_bytes: u64,
}

impl Usage {
    pub(super) fn now() -> Self {
        // SAFETY: the struct holds only integers; all zeros is a value of it, and getrusage fills it.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage
        };
        let mut cpu = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `cpu` is a valid place for one timespec. This clock counts nanoseconds that ran, where
        // getrusage on some kernels counts timer ticks that hit.
        unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut cpu) };
        Self {
            cpu_s: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
            // Linux counts in KiB.
            max_rss_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
        }
    }
}
