<?php
// Writes to a protected collection; prints what the driver says. Every driver's script does the same.

use MongoDB\Driver\BulkWrite;
use MongoDB\Driver\Command;
use MongoDB\Driver\Exception\BulkWriteException;
use MongoDB\Driver\Manager;
use MongoDB\Driver\Query;

$manager = new Manager($argv[1]);
$database = $argv[2];

function write(callable $fill, bool $ordered = true)
{
    global $manager, $database;
    $bulk = new BulkWrite(['ordered' => $ordered]);
    $fill($bulk);
    return $manager->executeBulkWrite("$database.users", $bulk);
}

function refused(callable $fill, bool $ordered = true)
{
    try {
        write($fill, $ordered);
        echo "not refused\n";
    } catch (BulkWriteException $error) {
        $errors = $error->getWriteResult()->getWriteErrors();
        if ($ordered) {
            $named = str_contains($errors[0]->getMessage(), 'email_1 dup key') ? 'True' : 'False';
            echo "refused {$errors[0]->getCode()} $named\n";
        } else {
            $positions = implode(',', array_map(fn($one) => $one->getIndex(), $errors));
            $inserted = $error->getWriteResult()->getInsertedCount();
            echo "refused {$errors[0]->getCode()} at $positions inserted $inserted\n";
        }
    }
}

write(fn($bulk) => $bulk->insert(['_id' => 1, 'email' => 'a@x']));
refused(fn($bulk) => $bulk->insert(['_id' => 2, 'email' => 'a@x']));
refused(function ($bulk) {
    $bulk->insert(['_id' => 3, 'email' => 'b@x']);
    $bulk->insert(['_id' => 4, 'email' => 'a@x']);
    $bulk->insert(['_id' => 5, 'email' => 'c@x']);
}, false);
refused(fn($bulk) => $bulk->update(['_id' => 3], ['$set' => ['email' => 'c@x']]));
$updated = write(fn($bulk) => $bulk->update(['_id' => 3], ['$set' => ['email' => 'd@x']]));
echo "updated {$updated->getModifiedCount()}\n";
$command = ['findAndModify' => 'users', 'query' => ['_id' => 3], 'update' => ['$set' => ['email' => 'e@x']]];
$before = $manager->executeReadWriteCommand($database, new Command($command))->toArray()[0]->value;
echo "before {$before->email}\n";
write(fn($bulk) => $bulk->update(['_id' => 6], ['email' => 'f@x'], ['upsert' => true]));
$deleted = write(fn($bulk) => $bulk->delete(['email' => 'a@x'], ['limit' => true]));
echo "deleted {$deleted->getDeletedCount()}\n";
write(fn($bulk) => $bulk->insert(['_id' => 7, 'email' => 'a@x']));
$found = $manager->executeQuery("$database.users", new Query([], ['sort' => ['_id' => 1]]))->toArray();
echo implode(' ', array_map(fn($user) => $user->email, $found)), "\n";
