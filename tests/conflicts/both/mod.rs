//! Trials that both strategies stand: Keywards that die, keys that are left behind, opposite orders, lost replies, documents of the
//! largest size. Each test here is two.

/// Makes two tests of each function: one with each strategy.
macro_rules! on_both_strategies {
    ($($trial:ident;)*) => {
        mod compensating {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $trial() {
                super::$trial(crate::strategy::Strategy::Compensating).await;
            })*
        }

        mod strict {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $trial() {
                super::$trial(crate::strategy::Strategy::Strict).await;
            })*
        }
    };
}

pub mod abandoned;
mod beside_reserved;
mod crash;
mod near_the_limit;
mod opposites;
mod places;
pub mod retries;
