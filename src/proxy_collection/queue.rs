//! Batches items: those that arrive while a command is under way share the next one.
//!
//! If a permit is free, a request runs at once, in its caller's task. Otherwise it waits in the queue's task for a permit,
//! never for a timer. The items of one request are never split, and keep their order.

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, oneshot};

use super::StoreError;

/// A command takes no further request from this many items on. This keeps the server's work per command, and so the next
/// wait, short.
const BATCH: usize = 1_000;
/// The same limit in bytes, far below the 48 MB of a message.
const BATCH_BYTES: usize = 16 << 20;

/// Work that one command can do for many items.
pub trait BatchWork: Send + Sync + 'static {
    /// One thing to do.
    type Item: Send + 'static;
    /// The outcome of an item.
    type Answer: Send + 'static;

    /// How many commands may be under way at the same time.
    const AT_ONCE: usize;

    /// How many bytes of a message an item takes.
    fn bytes(item: &Self::Item) -> usize;

    /// Carries out all `items`, and returns an answer for each, in order.
    fn run(&self, items: Vec<Self::Item>) -> impl Future<Output = Vec<Self::Answer>> + Send;
}

struct QueuedRequest<W: BatchWork> {
    items: Vec<W::Item>,
    answer: oneshot::Sender<Vec<W::Answer>>,
}

impl<W: BatchWork> QueuedRequest<W> {
    fn bytes(&self) -> usize {
        self.items.iter().map(W::bytes).sum()
    }
}

/// A handle to a queue.
#[derive(Debug)]
pub struct Queue<W: BatchWork> {
    work: Arc<W>,
    under_way: Arc<Semaphore>,
    sender: mpsc::UnboundedSender<QueuedRequest<W>>,
}

impl<W: BatchWork> Clone for Queue<W> {
    fn clone(&self) -> Self {
        Queue {
            work: self.work.clone(),
            under_way: self.under_way.clone(),
            sender: self.sender.clone(),
        }
    }
}

impl<W: BatchWork> Queue<W> {
    /// Starts the task that runs `work`; it ends when the last `Queue` is dropped. Needs a tokio runtime.
    pub fn start(work: W) -> Queue<W> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let work = Arc::new(work);
        let under_way = Arc::new(Semaphore::new(W::AT_ONCE));
        tokio::spawn(run(work.clone(), under_way.clone(), receiver));
        Queue {
            work,
            under_way,
            sender,
        }
    }

    /// Carries out `items`, beside those of other requests, and returns the outcome of each, in order.
    ///
    /// # Errors
    /// [`StoreError::Closed`] if the process is shutting down; the outcome of the items is then unknown.
    pub async fn ask(&self, items: Vec<W::Item>) -> Result<Vec<W::Answer>, StoreError> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        // This overtakes few requests: once the queue's task waits for a permit, it gets the next one.
        if let Ok(_permit) = self.under_way.try_acquire() {
            return Ok(self.work.run(items).await);
        }
        let (answer, outcome) = oneshot::channel();
        self.sender
            .send(QueuedRequest { items, answer })
            .map_err(|_| StoreError::Closed)?;
        outcome.await.map_err(|_| StoreError::Closed)
    }
}

async fn run<W: BatchWork>(
    work: Arc<W>,
    under_way: Arc<Semaphore>,
    mut receiver: mpsc::UnboundedReceiver<QueuedRequest<W>>,
) {
    while let Some(first) = receiver.recv().await {
        // Requests that arrive during this wait join the batch.
        let Ok(permit) = under_way.clone().acquire_owned().await else {
            return;
        };
        let mut bytes = first.bytes();
        let mut count = first.items.len();
        let mut requests = vec![first];
        while count < BATCH && bytes < BATCH_BYTES {
            let Ok(next) = receiver.try_recv() else { break };
            bytes += next.bytes();
            count += next.items.len();
            requests.push(next);
        }
        let work = work.clone();
        tokio::spawn(async move {
            serve(&*work, requests).await;
            drop(permit);
        });
    }
}

/// Runs one batch, and sends each request its part of the outcome.
async fn serve<W: BatchWork>(work: &W, requests: Vec<QueuedRequest<W>>) {
    let mut batch = Vec::new();
    let mut waiting = Vec::with_capacity(requests.len());
    for request in requests {
        waiting.push((request.items.len(), request.answer));
        batch.extend(request.items);
    }
    let mut answers = work.run(batch).await.into_iter();
    for (count, answer) in waiting {
        // The caller may have gone. Its reservations then wait for their lease.
        let _ = answer.send(answers.by_ref().take(count).collect());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::sync::Notify;

    use super::*;

    /// Returns its items when the test lets it, and notes each batch.
    #[derive(Debug, Default)]
    struct Echo {
        go_on: Arc<Notify>,
        batches: Arc<Mutex<Vec<Vec<u32>>>>,
    }

    impl BatchWork for Echo {
        type Item = u32;
        type Answer = u32;

        const AT_ONCE: usize = 1;

        fn bytes(item: &u32) -> usize {
            *item as usize
        }

        async fn run(&self, items: Vec<u32>) -> Vec<u32> {
            self.batches.lock().unwrap().push(items.clone());
            self.go_on.notified().await;
            items
        }
    }

    #[tokio::test]
    async fn items_that_arrive_meanwhile_share_a_batch_and_each_caller_gets_its_own_results() {
        let echo = Echo::default();
        let (go_on, batches) = (echo.go_on.clone(), echo.batches.clone());
        let queue = Queue::start(echo);
        let ask = |items: Vec<u32>| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.ask(items).await.unwrap() })
        };
        let first = ask(vec![1]);
        while batches.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        let large = u32::try_from(BATCH_BYTES).unwrap();
        let others = [ask(vec![2, 3]), ask(vec![4, large]), ask(vec![5])];
        go_on.notify_one();
        assert_eq!(first.await.unwrap(), [1]);
        go_on.notify_one();
        let [second, third, last] = others;
        assert_eq!(second.await.unwrap(), [2, 3]);
        assert_eq!(third.await.unwrap(), [4, large]);
        go_on.notify_one();
        assert_eq!(last.await.unwrap(), [5]);
        assert_eq!(*batches.lock().unwrap(), [vec![1], vec![2, 3, 4, large], vec![5]]);
    }

    #[tokio::test]
    async fn a_caller_that_stops_asking_holds_up_no_other() {
        let echo = Echo::default();
        let (go_on, batches) = (echo.go_on.clone(), echo.batches.clone());
        let queue = Queue::start(echo);
        let given_up = queue.ask(vec![1]);
        let mut given_up = Box::pin(given_up);
        assert!(futures_util::poll!(given_up.as_mut()).is_pending());
        let next = tokio::spawn({
            let queue = queue.clone();
            async move { queue.ask(vec![2]).await.unwrap() }
        });
        tokio::task::yield_now().await;
        drop(given_up);
        go_on.notify_one();
        assert_eq!(next.await.unwrap(), [2]);
        assert_eq!(*batches.lock().unwrap(), [vec![1], vec![2]]);
    }
}
