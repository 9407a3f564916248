# Writes to a protected collection; prints what the driver says. Every driver's script does the same.
use v5.20;
use warnings;
use MongoDB;
use Tie::IxHash;

my ($uri, $database) = @ARGV;
my $users = MongoDB->connect($uri)->get_database($database)->get_collection("users");

sub refused {
    my ($write) = @_;
    if (eval { $write->(); 1 }) {
        say "not refused";
        return;
    }
    my $error = $@;
    my $result = $error->result;
    my $count = $result->count_write_errors;
    if ($result->isa("MongoDB::BulkWriteResult") || $result->isa("MongoDB::InsertManyResult")) {
        my $positions = join ",", map { $_->{index} } @{ $result->write_errors };
        say join " ", "refused", $result->write_errors->[0]{code}, "at", $positions, "inserted", $result->inserted_count;
    } else {
        say join " ", "refused", $error->code, $error->message =~ /email_1 dup key/ ? "True" : "False";
    }
}

$users->insert_one({ _id => 1, email => 'a@x' });
refused(sub { $users->insert_one({ _id => 2, email => 'a@x' }) });
my @many = ({ _id => 3, email => 'b@x' }, { _id => 4, email => 'a@x' }, { _id => 5, email => 'c@x' });
refused(sub { $users->insert_many(\@many, { ordered => 0 }) });
refused(sub { $users->update_one({ _id => 3 }, { '$set' => { email => 'c@x' } }) });
say "updated ", $users->update_one({ _id => 3 }, { '$set' => { email => 'd@x' } })->modified_count;
say "before ", $users->find_one_and_update({ _id => 3 }, { '$set' => { email => 'e@x' } })->{email};
$users->replace_one({ _id => 6 }, { email => 'f@x' }, { upsert => 1 });
say "deleted ", $users->delete_one({ email => 'a@x' })->deleted_count;
$users->insert_one({ _id => 7, email => 'a@x' });
say join " ", map { $_->{email} } $users->find({}, { sort => [ _id => 1 ] })->all;
