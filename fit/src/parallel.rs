//! Independent pieces of work on all cores.
//!
//! Rule: results stand in the order of the items, whatever the number of cores; nothing depends on which thread did what.
//!
//! Cases: work may call for more of the same. The thread that calls works too, and takes as many helpers as cores are free, so
//! the last models of a fit have their folds on all cores.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads that work beside those that called [`map`].
static HELPERS: AtomicUsize = AtomicUsize::new(0);

/// What `work` makes of each item.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let most = std::thread::available_parallelism().map_or(1, NonZero::get) - 1;
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
    let take = || {
        while let Some(i) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < items.len()) {
            let result = work(&items[i]);
            if let Ok(mut done) = done.lock() {
                done.push((i, result));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..items.len() {
            let one_more = |helpers: usize| (helpers < most).then_some(helpers + 1);
            if HELPERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
                break;
            }
            scope.spawn(|| {
                let _place = Place;
                take();
            });
        }
        take();
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|d| d.0);
    done.into_iter().map(|d| d.1).collect()
}

/// One of the [`HELPERS`], until it is dropped.
struct Place;

impl Drop for Place {
    fn drop(&mut self) {
        HELPERS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_keep_the_order_of_the_items() {
        let items: Vec<u64> = (0..100).collect();
        assert_eq!(super::map(&items, |i| i * i), items.iter().map(|i| i * i).collect::<Vec<_>>());
        assert!(super::map(&[0; 0], |i| *i).is_empty());
    }
}
