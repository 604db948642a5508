//! What this process has cost so far: the libc edge.
#![allow(unsafe_code)]

/// CPU time and memory of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    pub(super) user_s: f64,
    pub(super) system_s: f64,
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
        let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
        Self {
            user_s: seconds(usage.ru_utime),
            system_s: seconds(usage.ru_stime),
            // Linux counts in KiB.
            max_rss_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
        }
    }
}
